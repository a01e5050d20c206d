/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>

#include "../../../csrc/worker/frame.h"
#include "build_frame.h"
#include "tap.h"

#define KIND 2u

static struct nvs_handles *handles;
static struct nvs_buffers buffers;
static struct nvs_call call;
static uint32_t wrong_index;

static enum nvs_status
decode (const struct building *b)
{
    unsigned char *frame = nvs_buffers_frame (&buffers, sizeof *b + 64);

    return nvs_frame_decode (&buffers, build_write (b, frame), handles, &call, &wrong_index);
}

static struct nvs_reply
encode (uint64_t result, uint32_t capacity)
{
    struct nvs_reply reply;

    nvs_frame_encode (&buffers, handles, &call, result, capacity, &reply);
    return reply;
}

static uint64_t
data_u64 (size_t offset)
{
    uint64_t value;

    memcpy (&value, call.data + offset, sizeof value);
    return value;
}

static void
lib_writes (size_t offset, const void *pointer)
{
    memcpy (call.data + offset, &pointer, sizeof pointer);
}

static void
test_args (void)
{
    static struct building b;
    static char object;
    uint64_t token;

    TRUE (nvs_handles_intern (handles, (uintptr_t)&object, KIND, &token) == 0);
    build_call (&b, 1, 0, 32);
    build_arg (&b, NVS_ARG_VALUE, 0, 0xffffffffffffffffu);
    build_arg (&b, NVS_ARG_DATA, 0, 16);
    build_arg (&b, NVS_ARG_HANDLE, KIND, token);
    build_arg (&b, NVS_ARG_HANDLE, KIND, 0);
    build_arg (&b, NVS_ARG_DATA, 0, 32); /* the end: a pointee of no bytes */
    SAME (decode (&b), NVS_STATUS_OK);
    SAME (call.registers[0], UINT64_MAX);
    SAME (call.registers[1], (uintptr_t)(call.data + 16));
    SAME (call.registers[2], (uintptr_t)&object);
    SAME (call.registers[3], 0);
    SAME (call.registers[4], (uintptr_t)(call.data + 32));
    SAME (call.registers[5], 0);
    SAME ((uintptr_t)call.data % NVS_DATA_ALIGN, 0);

    b.request.args[4].value = 33;
    SAME (decode (&b), NVS_STATUS_BAD_FRAME);
    b.request.args[4].value = UINT64_MAX;
    SAME (decode (&b), NVS_STATUS_BAD_FRAME);
    b.request.args[4].kind = 9;
    SAME (decode (&b), NVS_STATUS_BAD_FRAME);
    b.request.args_count = 4;
    b.request.args[2].value = token ^ 1ull << 40;
    SAME (decode (&b), NVS_STATUS_STALE_HANDLE);
    SAME (wrong_index, 2);
    b.request.args[2].value = 0x1234;
    SAME (decode (&b), NVS_STATUS_BAD_HANDLE);
    SAME (wrong_index, 2);
    b.request.args[2].handle_kind = 0;
    SAME (decode (&b), NVS_STATUS_BAD_FRAME);
    b.request.args[2].handle_kind = 256;
    SAME (decode (&b), NVS_STATUS_BAD_FRAME);
}

static void
test_layout (void)
{
    static struct building b;
    unsigned char *frame = nvs_buffers_frame (&buffers, sizeof b);
    uint32_t length;
    uint32_t right;

    build_call (&b, 1, 0, 24);
    right = build_write (&b, frame);
    SAME (right, 128 + 24);
    for (length = 0; length < right + 32; length++) {
        (void)build_write (&b, frame);
        if ((nvs_frame_decode (&buffers, length, handles, &call, &wrong_index) == NVS_STATUS_OK) != (length == right))
            break;
    }
    SAME (length, right + 32); /* of all lengths just the one is right */
    b.request.op = 4;
    SAME (decode (&b), NVS_STATUS_BAD_FRAME);
    b.request.op = NVS_OP_CALL;
    b.request.flags = 4;
    SAME (decode (&b), NVS_STATUS_BAD_FRAME);
    b.request.flags = 0;
    b.request.args_count = 7;
    SAME (decode (&b), NVS_STATUS_BAD_FRAME);
    b.request.args_count = UINT32_MAX;
    SAME (decode (&b), NVS_STATUS_BAD_FRAME);
    b.request.args_count = 0;
    b.request.relocs_count = UINT32_MAX;
    (void)memcpy (frame, &b.request, sizeof b.request);
    SAME (nvs_frame_decode (&buffers, right, handles, &call, &wrong_index), NVS_STATUS_BAD_FRAME);
    b.request.relocs_count = 0;
    b.request.data_len = UINT32_MAX;
    (void)memcpy (frame, &b.request, sizeof b.request);
    SAME (nvs_frame_decode (&buffers, right, handles, &call, &wrong_index), NVS_STATUS_BAD_FRAME);
}

static enum nvs_status
one_run (uint32_t kind, uint32_t handle_kind, uint32_t offset, uint32_t count, uint32_t stride)
{
    static struct building b;

    build_call (&b, 1, 0, 64);
    build_reloc (&b, kind, handle_kind, offset, count, stride);
    return decode (&b);
}

static void
test_runs (void)
{
    SAME (one_run (NVS_RELOC_POINTER, 0, 56, 1, 0), NVS_STATUS_OK);
    SAME (one_run (NVS_RELOC_POINTER, 0, 57, 1, 0), NVS_STATUS_BAD_FRAME);
    SAME (one_run (NVS_RELOC_POINTER, 0, 3, 1, 0), NVS_STATUS_OK); /* packed structures exist */
    SAME (one_run (NVS_RELOC_POINTER, 0, 0, 8, 8), NVS_STATUS_OK);
    SAME (one_run (NVS_RELOC_POINTER, 0, 0, 9, 8), NVS_STATUS_BAD_FRAME);
    SAME (one_run (NVS_RELOC_POINTER, 0, 0, 2, 7), NVS_STATUS_BAD_FRAME);
    SAME (one_run (NVS_RELOC_POINTER, 0, 0, 2, 56), NVS_STATUS_OK);
    SAME (one_run (NVS_RELOC_POINTER, 0, 0, 2, 57), NVS_STATUS_BAD_FRAME);
    SAME (one_run (NVS_RELOC_POINTER, 0, UINT32_MAX, 1, 0), NVS_STATUS_BAD_FRAME);
    SAME (one_run (NVS_RELOC_POINTER, 0, UINT32_MAX, UINT32_MAX, UINT32_MAX), NVS_STATUS_BAD_FRAME);
    SAME (one_run (NVS_RELOC_POINTER, 0, UINT32_MAX, 0, 0), NVS_STATUS_OK);
    SAME (one_run (0, 0, 0, 1, 0), NVS_STATUS_BAD_FRAME);
    SAME (one_run (4, 0, 0, 1, 0), NVS_STATUS_BAD_FRAME);
    SAME (one_run (NVS_RELOC_HANDLE, 0, 0, 1, 0), NVS_STATUS_BAD_FRAME);
    SAME (one_run (NVS_RELOC_HANDLE, 256, 0, 1, 0), NVS_STATUS_BAD_FRAME);
    SAME (one_run (NVS_RELOC_HANDLE, 255, 0, 8, 8), NVS_STATUS_OK);
}

/* A frame that is wrong at its end has not been changed at its beginning. */
static void
test_bad_changes_nothing (void)
{
    static struct building b;

    build_call (&b, 1, 0, 64);
    build_u64 (&b, 0, 1 + 32);
    build_u64 (&b, 8, 1 + 65);
    build_reloc (&b, NVS_RELOC_POINTER, 0, 0, 2, 8);
    SAME (decode (&b), NVS_STATUS_BAD_FRAME);
    SAME (data_u64 (0), 1 + 32);
    build_u64 (&b, 8, UINT64_MAX);
    SAME (decode (&b), NVS_STATUS_BAD_FRAME);
    build_u64 (&b, 8, 0x123456);
    build_reloc (&b, NVS_RELOC_HANDLE, KIND, 8, 1, 0);
    b.relocs[0].count = 1;
    SAME (decode (&b), NVS_STATUS_BAD_HANDLE);
    SAME (wrong_index, NVS_ARGS_MAX + 1);
    SAME (data_u64 (0), 1 + 32);
}

static void
test_out (void)
{
    static const char name[] = "a name";
    static struct building b;
    static char old;
    static char new;
    struct nvs_reply reply;
    uint64_t token;
    uint64_t value;

    TRUE (nvs_handles_intern (handles, (uintptr_t)&old, KIND, &token) == 0);
    build_call (&b, 1, 0, 128);
    build_u64 (&b, 0, token);    /* kept */
    build_u64 (&b, 8, token);    /* the library writes another */
    build_u64 (&b, 16, 0);       /* the library writes one */
    build_u64 (&b, 24, token);   /* the library writes NULL */
    build_u64 (&b, 32, 1 + 100); /* pointer: the library overwrites it */
    build_u64 (&b, 40, 0);       /* pointer: NULL, the library overwrites it */
    build_u64 (&b, 48, 1 + 120); /* string: kept */
    build_u64 (&b, 56, 1 + 120); /* string: of the library's */
    build_u64 (&b, 64, 0);       /* string: the same */
    build_u64 (&b, 72, 1 + 120); /* string: NULL */
    build_u64 (&b, 80, 0);       /* string: into the data, no NUL before its end */
    memset (b.data + 120, 'z', 8);
    build_reloc (&b, NVS_RELOC_HANDLE, KIND, 0, 4, 8);
    build_reloc (&b, NVS_RELOC_POINTER, 0, 32, 2, 8);
    build_reloc (&b, NVS_RELOC_STRING, 0, 48, 5, 8);
    SAME (decode (&b), NVS_STATUS_OK);
    SAME (data_u64 (0), (uintptr_t)&old);
    SAME (data_u64 (16), 0);
    SAME (data_u64 (32), (uintptr_t)(call.data + 100));
    SAME (data_u64 (40), 0);
    SAME (data_u64 (48), (uintptr_t)(call.data + 120));

    lib_writes (8, &new);
    lib_writes (16, &new);
    lib_writes (24, NULL);
    lib_writes (32, &new);
    lib_writes (40, &new);
    lib_writes (56, name);
    lib_writes (64, name);
    lib_writes (72, NULL);
    lib_writes (80, call.data + 120);
    reply = encode (0xdeadbeef00000007u, NVS_FRAME_MAX);
    SAME (reply.status, NVS_STATUS_OK);
    SAME (reply.result, 7);
    SAME (reply.data_len, 128);
    SAME (data_u64 (0), token);
    TRUE (data_u64 (8) != token);
    SAME (nvs_handles_lookup (handles, data_u64 (8), KIND, &value), NVS_STATUS_OK);
    SAME (value, (uintptr_t)&new);
    SAME (data_u64 (16), data_u64 (8));
    SAME (data_u64 (24), 0);
    SAME (data_u64 (32), 1 + 100);
    SAME (data_u64 (40), 0);
    SAME (data_u64 (48), 1 + 120);
    SAME (data_u64 (56), NVS_STRING_OUT);
    SAME (data_u64 (64), NVS_STRING_OUT);
    SAME (data_u64 (72), 0);
    SAME (data_u64 (80), NVS_STRING_OUT + sizeof name);
    SAME_TEXT (buffers.strings, name);
    SAME_TEXT (buffers.strings + sizeof name, "zzzzzzzz");
    SAME (reply.strings_len, sizeof name + 9);

    SAME (decode (&b), NVS_STATUS_OK);
    lib_writes (56, name);
    SAME (encode (0, (uint32_t)sizeof reply + 128 + sizeof name).status, NVS_STATUS_OK);
    SAME (decode (&b), NVS_STATUS_OK);
    lib_writes (56, name);
    reply = encode (0, (uint32_t)sizeof reply + 128 + sizeof name - 1);
    SAME (reply.status, NVS_STATUS_TOO_LARGE);
    SAME (reply.data_len + reply.strings_len, 0);
    SAME (reply.result, sizeof reply + 128 + sizeof name);
}

static enum nvs_status
fetch (uint64_t offset, uint32_t capacity, struct nvs_reply *reply, const unsigned char **part)
{
    static struct building b;
    enum nvs_status status;

    build_call (&b, 0, 0, sizeof offset);
    b.request.op = NVS_OP_FETCH;
    build_u64 (&b, 0, offset);
    status = decode (&b);
    if (status != NVS_STATUS_OK)
        return status;
    memset (reply, 0, sizeof *reply);
    return nvs_frame_fetch (&buffers, &call, capacity, reply, part);
}

/* Defect 2: a reply that does not fit is kept, for its function has run. */
static void
test_kept (void)
{
    static struct building b;
    static unsigned char whole[4096];
    static const char name[] = "some metric";
    const uint32_t capacity = sizeof (struct nvs_reply) + 50;
    const unsigned char *part = NULL;
    struct nvs_reply reply;
    size_t got = 0;
    size_t total;

    build_call (&b, 1, 0, 64);
    build_reloc (&b, NVS_RELOC_STRING, 0, 8, 1, 0);
    SAME (decode (&b), NVS_STATUS_OK);
    lib_writes (8, name);
    reply = encode (5, capacity);
    SAME (reply.status, NVS_STATUS_TOO_LARGE);
    total = (size_t)reply.result;
    SAME (total, sizeof reply + 64 + sizeof name);

    while (got < total && fetch (got, capacity, &reply, &part) == NVS_STATUS_OK && reply.data_len > 0
           && reply.data_len <= 50) {
        memcpy (whole + got, part, reply.data_len);
        got += reply.data_len;
    }
    SAME (got, total);
    memcpy (&reply, whole, sizeof reply);
    SAME (reply.status, NVS_STATUS_OK);
    SAME (reply.result, 5);
    SAME (reply.data_len, 64);
    SAME (reply.strings_len, sizeof name);
    SAME_TEXT ((const char *)whole + sizeof reply + 64, name);

    SAME (fetch (total, capacity, &reply, &part), NVS_STATUS_BAD_FRAME);
    SAME (fetch (UINT64_MAX, capacity, &reply, &part), NVS_STATUS_BAD_FRAME);
    SAME (fetch (total - 1, capacity, &reply, &part), NVS_STATUS_OK);
    SAME (reply.data_len, 1);
    nvs_buffers_trim (&buffers); /* all of it was fetched */
    SAME (fetch (0, capacity, &reply, &part), NVS_STATUS_BAD_FRAME);

    build_call (&b, 0, 0, 9);
    b.request.op = NVS_OP_FETCH;
    SAME (decode (&b), NVS_STATUS_OK);
    SAME (nvs_frame_fetch (&buffers, &call, capacity, &reply, &part), NVS_STATUS_BAD_FRAME);
}

/* Defect 10: each place of eight bytes may name a string of 4 KiB, so strings are bounded before they grow. */
static void
test_many_strings (void)
{
    enum {
        PLACES = 20000,
        TEXTS = 64
    }; /* more texts than are remembered, so that each is copied */
    static char texts[TEXTS][NVS_STRING_MAX];
    static struct nvs_request request;
    struct nvs_reloc run = { .kind = NVS_RELOC_STRING, .count = PLACES, .stride = 8 };
    const size_t data_at = (sizeof request + sizeof run + NVS_DATA_ALIGN - 1) / NVS_DATA_ALIGN * NVS_DATA_ALIGN;
    const uint32_t length = (uint32_t)data_at + 8 * PLACES;
    unsigned char *frame = nvs_buffers_frame (&buffers, length);
    struct nvs_reply reply;

    for (int i = 0; i < TEXTS; i++)
        memset (texts[i], 'x', NVS_STRING_MAX - 1);
    request.op = NVS_OP_CALL;
    request.relocs_count = 1;
    request.data_len = 8 * PLACES;
    memset (frame, 0, length);
    memcpy (frame, &request, sizeof request);
    memcpy (frame + sizeof request, &run, sizeof run);
    SAME (nvs_frame_decode (&buffers, length, handles, &call, &wrong_index), NVS_STATUS_OK);
    for (size_t i = 0; i < PLACES; i++)
        lib_writes (8 * i, texts[i % TEXTS]);
    reply = encode (0, 1u << 20);
    SAME (reply.status, NVS_STATUS_TOO_LARGE);
    SAME (reply.result, 0); /* larger than any channel carries */
    SAME (reply.data_len + reply.strings_len, 0);
    TRUE (buffers.strings_size <= NVS_FRAME_MAX);
    nvs_buffers_trim (&buffers);
    SAME (buffers.strings_size, 0);
}

/* Places that overlap in part would make addresses that nobody checked. */
static void
test_overlap (void)
{
    static struct building b;

    build_call (&b, 1, 0, 32);
    build_u64 (&b, 0, 1 + 16);
    build_reloc (&b, NVS_RELOC_STRING, 0, 0, 1, 0);
    build_reloc (&b, NVS_RELOC_POINTER, 0, 4, 1, 0);
    SAME (decode (&b), NVS_STATUS_BAD_FRAME);
    SAME (data_u64 (0), 1 + 16);
    SAME (data_u64 (8), 0);
}

/* Two runs that name the same places: what the caller gets is a token, not the token of a token. */
static void
test_twice (void)
{
    static struct building b;
    static char object;
    uint64_t value;

    build_call (&b, 1, 0, 16);
    build_reloc (&b, NVS_RELOC_HANDLE, KIND, 0, 1, 0);
    build_reloc (&b, NVS_RELOC_HANDLE, KIND, 0, 1, 0);
    SAME (decode (&b), NVS_STATUS_OK);
    lib_writes (0, &object);
    SAME (encode (0, NVS_FRAME_MAX).status, NVS_STATUS_OK);
    SAME (nvs_handles_lookup (handles, data_u64 (0), KIND, &value), NVS_STATUS_OK);
    SAME (value, (uintptr_t)&object);
    /* More places than the data can have without overlap. */
    b.relocs[0].count = 2;
    b.relocs[0].stride = 8;
    SAME (decode (&b), NVS_STATUS_BAD_FRAME);
}

static void
test_string_result (void)
{
    static char endless[NVS_STRING_MAX + 100];
    static struct building b;
    struct nvs_reply reply;

    build_call (&b, 1, NVS_CALL_RETURNS_STRING, 0);
    SAME (decode (&b), NVS_STATUS_OK);
    reply = encode ((uintptr_t)"Success", NVS_FRAME_MAX);
    SAME (reply.result, 1);
    SAME (reply.strings_len, 8);
    SAME_TEXT (buffers.strings, "Success");
    SAME (decode (&b), NVS_STATUS_OK);
    SAME (encode (0, NVS_FRAME_MAX).result, 0);
    SAME (decode (&b), NVS_STATUS_OK);
    memset (endless, 'x', sizeof endless);
    reply = encode ((uintptr_t)endless, NVS_FRAME_MAX);
    SAME (reply.strings_len, NVS_STRING_MAX);
    SAME (strlen (buffers.strings), NVS_STRING_MAX - 1);
}

/* What is freed is stale; what the same call gives out is new, even at the same address. */
static void
test_retires (void)
{
    static struct building b;
    static char object;
    static char inner;
    uint64_t token;
    uint64_t inner_token;
    uint64_t value;

    TRUE (nvs_handles_intern (handles, (uintptr_t)&object, KIND, &token) == 0);
    TRUE (nvs_handles_intern (handles, (uintptr_t)&inner, KIND, &inner_token) == 0);
    build_call (&b, 1, NVS_CALL_RETIRES, 16);
    build_arg (&b, NVS_ARG_HANDLE, KIND, token);
    build_u64 (&b, 0, inner_token);
    build_reloc (&b, NVS_RELOC_HANDLE, KIND, 0, 2, 8);
    SAME (decode (&b), NVS_STATUS_OK);
    SAME (encode (3, NVS_FRAME_MAX).result, 3); /* it failed: nothing was freed */
    SAME (nvs_handles_lookup (handles, token, KIND, &value), NVS_STATUS_OK);

    SAME (decode (&b), NVS_STATUS_OK);
    lib_writes (8, &object);
    SAME (encode (0, NVS_FRAME_MAX).status, NVS_STATUS_OK);
    SAME (data_u64 (0), inner_token);
    SAME (nvs_handles_lookup (handles, token, KIND, &value), NVS_STATUS_STALE_HANDLE);
    SAME (nvs_handles_lookup (handles, inner_token, KIND, &value), NVS_STATUS_STALE_HANDLE);
    TRUE (data_u64 (8) != token);
    SAME (nvs_handles_lookup (handles, data_u64 (8), KIND, &value), NVS_STATUS_OK);
    SAME (value, (uintptr_t)&object);
    SAME (decode (&b), NVS_STATUS_STALE_HANDLE);
}

static void
test_buffers (void)
{
    TRUE (nvs_buffers_frame (&buffers, 5u << 20) != NULL);
    TRUE (buffers.frame_size >= 5u << 20);
    nvs_buffers_trim (&buffers);
    SAME (buffers.frame_size, 0);
    TRUE (nvs_buffers_frame (&buffers, 1u << 20) != NULL);
    nvs_buffers_trim (&buffers);
    SAME (buffers.frame_size, 1u << 20);
}

int
main (void)
{
    handles = nvs_handles_new (0x12345);
    test_args ();
    test_layout ();
    test_runs ();
    test_bad_changes_nothing ();
    test_out ();
    test_kept ();
    test_many_strings ();
    test_overlap ();
    test_twice ();
    test_string_result ();
    test_retires ();
    test_buffers ();
    nvs_buffers_free (&buffers);
    nvs_handles_free (handles);
    return tap_done ();
}
