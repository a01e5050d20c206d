/* SPDX-License-Identifier: Apache-2.0 */
#include "frame.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

/*
 * What is trusted: nothing in the frame. It was copied out of shared memory before it came here, so what was checked
 * stays as it was. A well-formed frame can make the library read and write the frame's own data, pass any numbers, and
 * pass handles that the table knows; whether the pointees are as large as the function wants is the caller's affair,
 * as it is for a caller without a sandbox, and what goes wrong then goes wrong in this process.
 */

#define FRAME_KEEP (1u << 20) /* larger buffers are given back after the call */
#define FIRST_SIZE 4096u
#define DEDUP      32u

_Static_assert (_Alignof (max_align_t) >= NVS_DATA_ALIGN, "malloc aligns data as protocol.h says");

static size_t
round_up (size_t size)
{
    size_t rounded = FIRST_SIZE;

    while (rounded < size)
        rounded *= 2;
    return rounded;
}

/* Makes *buffer at least `size` bytes, without what was in it. */
static int
reserve (void *buffer_at, size_t *have, size_t size)
{
    void **buffer = buffer_at;

    if (*have >= size && *buffer != NULL)
        return 0;
    free (*buffer);
    *have = 0;
    *buffer = malloc (round_up (size));
    if (*buffer == NULL)
        return -1;
    *have = round_up (size);
    return 0;
}

void *
nvs_buffers_frame (struct nvs_buffers *buffers, size_t size)
{
    return reserve (&buffers->frame, &buffers->frame_size, size) == 0 ? buffers->frame : NULL;
}

void
nvs_buffers_forget_reply (struct nvs_buffers *buffers)
{
    free (buffers->kept);
    buffers->kept = NULL;
    buffers->kept_len = 0;
    buffers->kept_fetched = false;
}

void
nvs_buffers_trim (struct nvs_buffers *buffers)
{
    if (buffers->kept_fetched)
        nvs_buffers_forget_reply (buffers);
    if (buffers->frame_size > FRAME_KEEP || buffers->places_size > FRAME_KEEP || buffers->strings_size > FRAME_KEEP) {
        free (buffers->frame);
        free (buffers->places);
        free (buffers->strings);
        buffers->frame = NULL;
        buffers->places = NULL;
        buffers->strings = NULL;
        buffers->frame_size = buffers->places_size = buffers->strings_size = buffers->strings_len = 0;
    }
}

void
nvs_buffers_free (struct nvs_buffers *buffers)
{
    free (buffers->frame);
    free (buffers->places);
    free (buffers->strings);
    free (buffers->kept);
    memset (buffers, 0, sizeof *buffers);
}

static uint64_t
get (const unsigned char *at)
{
    uint64_t value;

    memcpy (&value, at, sizeof value); /* places need not be aligned */
    return value;
}

static void
put (unsigned char *at, uint64_t value)
{
    memcpy (at, &value, sizeof value);
}

static uint64_t
address (const void *pointer)
{
    return (uint64_t)(uintptr_t)pointer;
}

/* A place lies at an offset that check_run () has found to be inside. */
static unsigned char *
place_at (const struct nvs_call *call, const struct nvs_reloc *run, uint32_t i)
{
    return call->data + run->offset + (size_t)i * run->stride;
}

static bool
check_run (const struct nvs_reloc *run, uint32_t data_len)
{
    if (run->kind != NVS_RELOC_HANDLE && run->kind != NVS_RELOC_POINTER && run->kind != NVS_RELOC_STRING)
        return false;
    if (run->kind == NVS_RELOC_HANDLE && (run->handle_kind < 1 || run->handle_kind > 255))
        return false;
    if (run->count == 0)
        return true;
    if (run->count > 1 && run->stride < sizeof (uint64_t))
        return false;
    /* count and stride have 32 bits each: the product and the sums fit 64. */
    return run->offset + (uint64_t)(run->count - 1) * run->stride + sizeof (uint64_t) <= data_len;
}

/* The sizes and counts, and with them where everything is. */
static enum nvs_status
check_layout (const struct nvs_buffers *buffers, uint32_t length, struct nvs_call *call, size_t *places)
{
    const struct nvs_request *request = (const void *)buffers->frame;
    uint64_t data_at;

    *places = 0;
    if (length < sizeof *request || request->args_count > NVS_ARGS_MAX || request->relocs_count > NVS_RELOCS_MAX)
        return NVS_STATUS_BAD_FRAME;
    if ((request->op != NVS_OP_RESOLVE && request->op != NVS_OP_CALL && request->op != NVS_OP_FETCH)
        || (request->flags & ~(uint32_t)(NVS_CALL_RETURNS_STRING | NVS_CALL_RETIRES)) != 0)
        return NVS_STATUS_BAD_FRAME;
    data_at = sizeof *request + request->relocs_count * (uint64_t)sizeof (struct nvs_reloc);
    data_at = (data_at + NVS_DATA_ALIGN - 1) / NVS_DATA_ALIGN * NVS_DATA_ALIGN;
    if (data_at + request->data_len != length)
        return NVS_STATUS_BAD_FRAME;

    call->request = request;
    call->relocs = (const void *)(request + 1);
    call->data = buffers->frame + data_at;
    for (uint32_t i = 0; i < request->relocs_count; i++) {
        if (!check_run (&call->relocs[i], request->data_len))
            return NVS_STATUS_BAD_FRAME;
        *places += call->relocs[i].count;
        /* Places that do not overlap cannot be more than this. It bounds what a frame can make us allocate. */
        if (*places * sizeof (uint64_t) > request->data_len)
            return NVS_STATUS_BAD_FRAME;
    }
    return NVS_STATUS_OK;
}

static enum nvs_status
resolve_args (struct nvs_handles *handles, struct nvs_call *call, uint32_t *index)
{
    const struct nvs_request *request = call->request;

    memset (call->registers, 0, sizeof call->registers);
    for (uint32_t i = 0; i < request->args_count; i++) {
        const struct nvs_arg *arg = &request->args[i];
        enum nvs_status status;

        *index = i;
        switch (arg->kind) {
        case NVS_ARG_VALUE: call->registers[i] = arg->value; break;
        case NVS_ARG_DATA:
            /* The end itself is allowed: a pointee of no bytes may lie there. */
            if (arg->value > request->data_len)
                return NVS_STATUS_BAD_FRAME;
            call->registers[i] = address (call->data + arg->value);
            break;
        case NVS_ARG_HANDLE:
            if (arg->handle_kind < 1 || arg->handle_kind > 255)
                return NVS_STATUS_BAD_FRAME;
            status = nvs_handles_lookup (handles, arg->value, arg->handle_kind, &call->registers[i]);
            if (status != NVS_STATUS_OK)
                return status;
            break;
        default: return NVS_STATUS_BAD_FRAME;
        }
    }
    return NVS_STATUS_OK;
}

/* Only reads: everything is checked before anything is changed, and places that overlap cannot see each
 * other's results. */
static enum nvs_status
resolve_places (struct nvs_buffers *buffers, struct nvs_handles *handles, struct nvs_call *call, uint32_t *index)
{
    struct nvs_place *place = buffers->places;

    for (uint32_t r = 0; r < call->request->relocs_count; r++) {
        const struct nvs_reloc *run = &call->relocs[r];

        *index = NVS_ARGS_MAX + r;
        for (uint32_t i = 0; i < run->count; i++, place++) {
            place->sent = get (place_at (call, run, i));
            place->given = 0;
            if (run->kind == NVS_RELOC_HANDLE) {
                enum nvs_status status = nvs_handles_lookup (handles, place->sent, run->handle_kind, &place->given);

                if (status != NVS_STATUS_OK)
                    return status;
            } else if (place->sent != 0) {
                if (place->sent - 1 > call->request->data_len)
                    return NVS_STATUS_BAD_FRAME;
                place->given = address (call->data + (place->sent - 1));
            }
        }
    }
    return NVS_STATUS_OK;
}

static void
write_places (const struct nvs_buffers *buffers, const struct nvs_call *call, bool given)
{
    const struct nvs_place *place = buffers->places;

    for (uint32_t r = 0; r < call->request->relocs_count; r++)
        for (uint32_t i = 0; i < call->relocs[r].count; i++, place++)
            put (place_at (call, &call->relocs[r], i), given ? place->given : place->sent);
}

/* Whether each place holds what was written to it. Where places overlap in part, some do not, and what is there is an
 * address that nobody checked. (What was sent was read from all places before any was written: it can be put back.) */
static bool
places_hold (const struct nvs_buffers *buffers, const struct nvs_call *call)
{
    const struct nvs_place *place = buffers->places;

    for (uint32_t r = 0; r < call->request->relocs_count; r++)
        for (uint32_t i = 0; i < call->relocs[r].count; i++, place++)
            if (get (place_at (call, &call->relocs[r], i)) != place->given)
                return false;
    return true;
}

enum nvs_status
nvs_frame_decode (struct nvs_buffers *buffers, uint32_t length, struct nvs_handles *handles, struct nvs_call *call,
                  uint32_t *index)
{
    enum nvs_status status;
    size_t places;

    *index = 0;
    status = check_layout (buffers, length, call, &places);
    if (status == NVS_STATUS_OK)
        status = resolve_args (handles, call, index);
    if (status != NVS_STATUS_OK)
        return status;
    if (places > 0 && reserve (&buffers->places, &buffers->places_size, places * sizeof *buffers->places) < 0)
        return NVS_STATUS_NO_MEMORY;
    status = resolve_places (buffers, handles, call, index);
    if (status != NVS_STATUS_OK)
        return status;

    *index = 0;
    write_places (buffers, call, true);
    if (places_hold (buffers, call))
        return NVS_STATUS_OK;
    write_places (buffers, call, false);
    return NVS_STATUS_BAD_FRAME;
}

/* The strings that one reply has already collected. Tables of names repeat few pointers many times. */
struct seen {
    uint64_t pointer[DEDUP];
    size_t offset[DEDUP];
    unsigned count;
};

/* Copies a string of the library's to the reply's, and says at which offset. A few bytes of a frame can name a string of
 * 4 KiB, so what is collected is bounded before it grows: NVS_STATUS_TOO_LARGE beyond what any channel carries. */
static enum nvs_status
collect (struct nvs_buffers *buffers, const struct nvs_call *call, struct seen *seen, uint64_t pointer, size_t *offset)
{
    const char *text = (const char *)(uintptr_t)pointer;
    uint64_t data = address (call->data);
    size_t limit = NVS_STRING_MAX - 1;
    size_t length;

    for (unsigned i = 0; i < seen->count && i < DEDUP; i++)
        if (seen->pointer[i] == pointer) {
            *offset = seen->offset[i];
            return NVS_STATUS_OK;
        }
    /* The library may have stored the address of a buffer that the caller passed in, without a NUL at its end. */
    if (pointer >= data && pointer - data <= call->request->data_len
        && call->request->data_len - (pointer - data) < limit)
        limit = call->request->data_len - (size_t)(pointer - data);
    length = strnlen (text, limit);

    if (sizeof (struct nvs_reply) + (uint64_t)call->request->data_len + buffers->strings_len + length + 1
        > NVS_FRAME_MAX)
        return NVS_STATUS_TOO_LARGE;
    if (buffers->strings_size - buffers->strings_len < length + 1) {
        size_t size = round_up (buffers->strings_len + length + 1);
        char *strings = realloc (buffers->strings, size);

        if (strings == NULL)
            return NVS_STATUS_NO_MEMORY;
        buffers->strings = strings;
        buffers->strings_size = size;
    }
    memcpy (buffers->strings + buffers->strings_len, text, length);
    buffers->strings[buffers->strings_len + length] = '\0';
    *offset = buffers->strings_len;
    buffers->strings_len += length + 1;

    seen->pointer[seen->count % DEDUP] = pointer;
    seen->offset[seen->count % DEDUP] = *offset;
    seen->count++;
    return NVS_STATUS_OK;
}

static void
retire (struct nvs_buffers *buffers, struct nvs_handles *handles, const struct nvs_call *call)
{
    const struct nvs_place *place = buffers->places;

    for (uint32_t i = 0; i < call->request->args_count; i++)
        if (call->request->args[i].kind == NVS_ARG_HANDLE && call->request->args[i].value != 0)
            nvs_handles_retire (handles, call->request->args[i].value);
    for (uint32_t r = 0; r < call->request->relocs_count; r++)
        for (uint32_t i = 0; i < call->relocs[r].count; i++, place++)
            if (call->relocs[r].kind == NVS_RELOC_HANDLE && place->sent != 0)
                nvs_handles_retire (handles, place->sent);
}

/* What the caller gets to see of one place, from what the library left there. */
static enum nvs_status
translate (struct nvs_buffers *buffers, struct nvs_handles *handles, const struct nvs_call *call, struct seen *seen,
           const struct nvs_reloc *run, const struct nvs_place *place, uint64_t *value)
{
    enum nvs_status status;
    size_t offset = 0;

    /* Untouched places keep what the caller sent, the token of an object that this very call has freed included. */
    if (run->kind == NVS_RELOC_POINTER || *value == place->given) {
        *value = place->sent;
        return NVS_STATUS_OK;
    }
    if (run->kind == NVS_RELOC_HANDLE)
        return nvs_handles_intern (handles, *value, run->handle_kind, value) < 0 ? NVS_STATUS_NO_MEMORY : NVS_STATUS_OK;
    if (*value == 0)
        return NVS_STATUS_OK;
    status = collect (buffers, call, seen, *value, &offset);
    if (status == NVS_STATUS_OK)
        *value = NVS_STRING_OUT + offset;
    return status;
}

/* As in decoding, everything is read before anything is written, so that places named twice are translated once. */
static enum nvs_status
restore (struct nvs_buffers *buffers, struct nvs_handles *handles, struct nvs_call *call, struct seen *seen)
{
    struct nvs_place *place = buffers->places;

    for (uint32_t r = 0; r < call->request->relocs_count; r++)
        for (uint32_t i = 0; i < call->relocs[r].count; i++, place++) {
            uint64_t value = get (place_at (call, &call->relocs[r], i));
            enum nvs_status status = translate (buffers, handles, call, seen, &call->relocs[r], place, &value);

            if (status != NVS_STATUS_OK)
                return status;
            place->given = value;
        }
    write_places (buffers, call, true);
    return NVS_STATUS_OK;
}

/* The function has run, so the reply must not get lost: what does not fit the channel is fetched from here. */
static enum nvs_status
keep_reply (struct nvs_buffers *buffers, const struct nvs_call *call, const struct nvs_reply *reply)
{
    const size_t length = sizeof *reply + reply->data_len + reply->strings_len;
    unsigned char *kept = malloc (length);

    if (kept == NULL)
        return NVS_STATUS_NO_MEMORY;
    memcpy (kept, reply, sizeof *reply);
    memcpy (kept + sizeof *reply, call->data, reply->data_len);
    if (reply->strings_len > 0)
        memcpy (kept + sizeof *reply + reply->data_len, buffers->strings, reply->strings_len);
    nvs_buffers_forget_reply (buffers);
    buffers->kept = kept;
    buffers->kept_len = length;
    return NVS_STATUS_TOO_LARGE;
}

enum nvs_status
nvs_frame_fetch (struct nvs_buffers *buffers, const struct nvs_call *call, uint32_t capacity, struct nvs_reply *reply,
                 const unsigned char **part)
{
    const struct nvs_request *request = call->request;
    size_t room = capacity - sizeof *reply;
    uint64_t offset;
    size_t left;

    if (request->args_count != 0 || request->relocs_count != 0 || request->data_len != sizeof offset)
        return NVS_STATUS_BAD_FRAME;
    offset = get (call->data);
    if (offset >= buffers->kept_len)
        return NVS_STATUS_BAD_FRAME;
    left = buffers->kept_len - (size_t)offset;
    *part = buffers->kept + offset;
    reply->data_len = (uint32_t)(left < room ? left : room);
    buffers->kept_fetched = left <= room;
    return NVS_STATUS_OK;
}

void
nvs_frame_encode (struct nvs_buffers *buffers, struct nvs_handles *handles, struct nvs_call *call, uint64_t result,
                  uint32_t capacity, struct nvs_reply *reply)
{
    const bool returns_string = (call->request->flags & NVS_CALL_RETURNS_STRING) != 0;
    const uint32_t data_len = call->request->data_len;
    struct seen seen;
    size_t offset = 0;

    seen.count = 0;
    buffers->strings_len = 0;
    memset (reply, 0, sizeof *reply);
    if (returns_string) {
        if (result != 0)
            reply->status = collect (buffers, call, &seen, result, &offset);
        if (reply->status != NVS_STATUS_OK) {
            buffers->strings_len = 0;
            return;
        }
        result = result != 0 ? 1 + offset : 0;
    } else {
        result = (uint32_t)result; /* nvmlReturn_t: the register's upper half is whatever it was */
        /* Before new handles are looked at: the library may give out the address of what it has just freed again. */
        if (result == 0 && (call->request->flags & NVS_CALL_RETIRES) != 0)
            retire (buffers, handles, call);
    }
    reply->status = restore (buffers, handles, call, &seen);
    if (reply->status != NVS_STATUS_OK) {
        buffers->strings_len = 0;
        return;
    }
    reply->data_len = data_len;
    reply->strings_len = (uint32_t)buffers->strings_len;
    reply->result = result;
    if (sizeof *reply + (uint64_t)data_len + buffers->strings_len <= capacity)
        return;
    *reply = (struct nvs_reply){ .status = keep_reply (buffers, call, reply) };
    reply->result = reply->status == NVS_STATUS_TOO_LARGE ? buffers->kept_len : 0;
    buffers->strings_len = 0;
}
