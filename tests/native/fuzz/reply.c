/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The caller's end of a lane against a worker that writes anything at all, before the answer and while it is read. The
 * input plays the worker: it writes the header's words and the reply through a mapping of its own.
 *
 * What was not announced as part of the reply is poisoned for the address sanitizer, and what replies are copied to is
 * just as large as the caller said: a read or a write too far ends the run. A model that knows nothing but the
 * bytes says what has to come of them.
 *
 * The bytes: struct told below, then the reply.
 */
#include <pthread.h>
#include <sanitizer/asan_interface.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "core.h"
#include "reply.h"

#define ROUNDS    64
#define PARTS     2
#define SLEEP_NS  1000
#define DATA_MASK 0x3ffu

struct told {
    uint8_t flags;
    uint8_t ahead; /* added to the number that the caller waits for */
    uint16_t data_len;
    uint16_t capacity;
    uint16_t offset;
    uint32_t reply_length;
    uint32_t words[3]; /* what else lies in the lane's header */
};

enum told_flags {
    SHORT_WAY = 1u << 0,
    CHANGING = 1u << 1,    /* while the caller reads */
    LENGTH_FITS = 1u << 2, /* reply_length is that of the bytes */
    DATA_FITS = 1u << 3,   /* the caller wants as many bytes of data as there are */
    NUMBER_FITS = 1u << 4,
    SMALL = 1u << 5, /* the caller has room for `capacity` bytes only */
};

static struct nvs_pace pace;
static struct nvs_crowd crowd = { .looking_max = 1 };

/* The worker's view, and what a second thread of it needs to know. */
static struct nvs_lane *theirs;
static unsigned char *written;
static uint32_t asked;
static const uint8_t *material;
static size_t material_size;
static _Atomic bool over;

int LLVMFuzzerTestOneInput (const uint8_t *bytes, size_t size);

static void
check (bool holds, const char *what)
{
    if (holds)
        return;
    (void)fprintf (stderr, "%s\n", what);
    abort ();
}

static void *
allocate (size_t size)
{
    void *memory = malloc (size > 0 ? size : 1);

    check (memory != NULL, "no memory");
    return memory;
}

static struct nvs_caller_lane *
make_lane (void)
{
    struct nvs_caller_lane *lane;
    struct nvs_error error;
    int32_t fd = -1;

    lane = nvs_lane_new (1, &fd, &error);
    check (lane != NULL, "no lane");
    theirs = mmap (NULL, NVS_LANE_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    check (theirs != MAP_FAILED, "the lane cannot be mapped");
    written = (unsigned char *)theirs + NVS_LANE_DATA;
    nvs_lane_sent (lane);
    return lane;
}

/* Answers: `length` is what the worker says, `size` what it has written. */
static void
answer (const struct told *told, const uint8_t *reply, size_t size, uint32_t length, uint32_t number)
{
    memcpy (written, reply, size);
    atomic_store (&theirs->request, told->words[0]);
    atomic_store (&theirs->closed, told->words[1]);
    atomic_store (&theirs->taken, told->words[2]);
    atomic_store (&theirs->worker_cpu, told->words[0]);
    atomic_store (&theirs->worker_sleeps, told->words[1]);
    atomic_store (&theirs->reply_length, length);
    atomic_store (&theirs->reply, number);
}

/* The short way's copying, as csrc/fast/fast.c does it: by its own plan of `data_len` bytes. */
struct part {
    unsigned char *to;
    uint32_t offset;
    uint32_t size;
};

static void
copy_parts (const struct part *parts, const unsigned char *data)
{
    for (int i = 0; data != NULL && i < PARTS; i++)
        memcpy (parts[i].to, data + parts[i].offset, parts[i].size);
}

static uint32_t
word (const uint8_t *bytes, size_t at)
{
    uint32_t value;

    memcpy (&value, bytes + at, sizeof value);
    return value;
}

/* What the short way has to make of a reply of `length` bytes that do not change. */
static enum nvs_answer_kind
expected (const uint8_t *bytes, uint32_t length, uint32_t data_len, int32_t *result)
{
    *result = 20;
    if (length < 32)
        return NVS_NO_ANSWER;
    switch (word (bytes, 0)) {
    case 3:
    case 4: return NVS_NOT_CARRIED_OUT;
    case 5: return NVS_ANSWERED;
    case 0: break;
    default: return NVS_NO_ANSWER;
    }
    *result = (int32_t)word (bytes, 16);
    return length == 32 + data_len && word (bytes, 4) == data_len && word (bytes, 8) == 0 ? NVS_ANSWERED
                                                                                          : NVS_NO_ANSWER;
}

static void
short_way (struct nvs_caller_lane *lane, const uint8_t *bytes, bool answered, uint32_t length, uint32_t data_len,
           uint32_t split)
{
    struct part parts[PARTS] = { { allocate (split), 0, split },
                                 { allocate (data_len - split), split, data_len - split } };
    enum nvs_answer_kind kind;
    const unsigned char *data;
    int32_t want_result;
    int32_t result = -1;

    check (nvs_lane_sleep (lane, 0) == answered && nvs_lane_spin (lane, 0) == answered, "answered or not");
    check (nvs_lane_await (lane, &pace, &crowd, 0, 0) == answered,
           "answered or not, to who looks around the usual time");
    if (answered) {
        check (nvs_lane_reply_length (lane) == length, "the length");
        kind = nvs_reply_read (nvs_lane_frame (lane), length, data_len, &result, &data);
        check (kind == expected (bytes, length, data_len, &want_result), "what became of it");
        check (kind != NVS_ANSWERED || result == want_result, "the result");
        check ((data != NULL) == (kind == NVS_ANSWERED && word (bytes, 0) == 0), "data or none");
        copy_parts (parts, data);
        for (int i = 0; data != NULL && i < PARTS; i++)
            check (memcmp (parts[i].to, bytes + 32 + parts[i].offset, parts[i].size) == 0, "the data");
    }
    for (int i = 0; i < PARTS; i++)
        free (parts[i].to);
}

static void
long_way (struct nvs_caller_lane *lane, const uint8_t *bytes, bool answered, uint32_t length, uint32_t capacity)
{
    unsigned char *reply = allocate (capacity);
    uint32_t got = 77;
    int status = nvs_lane_wait (lane, 0, reply, capacity, &got);

    if (!answered)
        check (status == NVS_WAIT_PENDING && got == 77, "nothing there");
    else if (length > NVS_LANE_FRAME || length > capacity)
        check (status == NVS_WAIT_BROKEN && got == 77, "too long");
    else
        check (status == NVS_WAIT_DONE && got == length && memcmp (reply, bytes, length) == 0, "a reply");
    free (reply);
}

/* A reply that stays as it is: all that comes of it is known. */
static void
still (struct nvs_caller_lane *lane, const struct told *told, const uint8_t *bytes, size_t size, uint32_t data_len,
       uint32_t capacity)
{
    static unsigned char content[NVS_LANE_FRAME]; /* what the frame holds: the bytes, then zeros */
    uint32_t length = (told->flags & LENGTH_FITS) != 0 ? (uint32_t)size : told->reply_length;
    uint32_t shown = length <= NVS_LANE_FRAME ? length : 0;
    bool answered = (told->flags & NUMBER_FITS) != 0 || told->ahead == 0;

    memcpy (content, bytes, size);
    memset (written, 0, NVS_LANE_FRAME);
    answer (told, bytes, size, length, asked + (answered ? 0 : told->ahead));
    ASAN_POISON_MEMORY_REGION (nvs_lane_frame (lane) + shown, NVS_LANE_FRAME - shown);
    check (nvs_lane_answered (lane) == answered, "the number");
    check (nvs_lane_taken (lane) == (told->words[2] == asked), "taken");
    if ((told->flags & SHORT_WAY) != 0)
        short_way (lane, content, answered, shown, data_len, told->offset % (data_len + 1));
    else
        long_way (lane, content, answered, length, capacity);
    ASAN_UNPOISON_MEMORY_REGION (nvs_lane_frame (lane), NVS_LANE_FRAME);
    memset (content, 0, size);
}

/* Writes one thing after the other over what the caller is reading: what the input says, and what would be right. */
static void *
change (void *argument)
{
    const struct told *told = argument;
    uint32_t right_len = (uint32_t)material_size;
    size_t at = 0;

    while (!atomic_load_explicit (&over, memory_order_relaxed)) {
        uint32_t odd = told->words[at % 3];

        atomic_store_explicit (&theirs->reply_length, at % 2 != 0 ? right_len : told->reply_length,
                               memory_order_relaxed);
        for (size_t i = 0; i + sizeof odd <= sizeof (struct nvs_reply) && i + sizeof odd <= material_size;
             i += sizeof odd)
            memcpy (written + i, at % 3 == 0 ? (const void *)&odd : material + i, sizeof odd);
        if (material_size > 0)
            written[at % material_size] ^= (unsigned char)at;
        atomic_store_explicit (&theirs->reply, at % 5 == 0 ? odd : asked, memory_order_relaxed);
        at++;
    }
    return NULL;
}

/* The same while the worker goes on writing: what comes of it is one of the things that may, and nothing is read or
 * written elsewhere. */
static void
moving (struct nvs_caller_lane *lane, struct told *told, const uint8_t *bytes, size_t size, uint32_t data_len,
        uint32_t capacity)
{
    const uint32_t split = told->offset % (data_len + 1);
    struct part parts[PARTS] = { { allocate (split), 0, split },
                                 { allocate (data_len - split), split, data_len - split } };
    unsigned char *reply = allocate (capacity);
    pthread_t thread;

    material = bytes;
    material_size = size;
    atomic_store (&over, false);
    answer (told, bytes, size, (uint32_t)size, asked);
    check (pthread_create (&thread, NULL, change, told) == 0, "no thread");
    for (int i = 0; i < ROUNDS; i++) {
        const unsigned char *data = NULL;
        int32_t result = -1;

        if ((told->flags & SHORT_WAY) != 0) {
            uint32_t length;

            (void)nvs_lane_await (lane, &pace, &crowd, 0, SLEEP_NS);
            length = nvs_lane_reply_length (lane);
            check (length <= NVS_LANE_FRAME, "a length that the lane has no room for");
            (void)nvs_reply_read (nvs_lane_frame (lane), length, data_len, &result, &data);
            check (data == NULL || length == sizeof (struct nvs_reply) + data_len, "data that were not announced");
            copy_parts (parts, data);
        } else {
            uint32_t got = 77;
            int status = nvs_lane_wait (lane, SLEEP_NS, reply, capacity, &got);

            check (status == NVS_WAIT_DONE ? got <= capacity : got == 77, "a length without a reply");
        }
    }
    atomic_store (&over, true);
    (void)pthread_join (thread, NULL);
    for (int i = 0; i < PARTS; i++)
        free (parts[i].to);
    free (reply);
}

int
LLVMFuzzerTestOneInput (const uint8_t *bytes, size_t size)
{
    static struct nvs_caller_lane *lane;
    struct told told = { 0 };
    uint32_t capacity;
    uint32_t data_len;

    if (lane == NULL)
        lane = make_lane ();
    if (size > NVS_LANE_FRAME)
        return 0;
    memcpy (&told, bytes, size < sizeof told ? size : sizeof told);
    bytes += size < sizeof told ? size : sizeof told;
    size -= size < sizeof told ? size : sizeof told;

    data_len = told.data_len & DATA_MASK;
    if ((told.flags & DATA_FITS) != 0)
        data_len = size > sizeof (struct nvs_reply) ? (uint32_t)(size - sizeof (struct nvs_reply)) : 0;
    capacity = (told.flags & SMALL) != 0 ? told.capacity : NVS_LANE_FRAME;

    check (nvs_lane_submit (lane, "request", sizeof "request") == 0, "the lane is taken");
    asked++;
    check (atomic_load (&theirs->request) == asked, "the request's number");
    if ((told.flags & CHANGING) != 0)
        moving (lane, &told, bytes, size, data_len, capacity);
    else
        still (lane, &told, bytes, size, data_len, capacity);
    return 0;
}
