/* SPDX-License-Identifier: Apache-2.0 */
/*
 * That nothing in shared memory is read twice, seen instruction by instruction. The caller's mapping of a lane is
 * closed to it: each access faults, is noted, let through alone (by the processor's single step), and what it has read is
 * changed behind it, as a hostile worker could. It is what the compiler made of the code that is looked at, not what it
 * says.
 */
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <ucontext.h>

#include "../worker/tap.h"
#include "core.h"
#include "reply.h"

/* With the address sanitizer memcpy is a function, which may read a byte twice for one copy. */
#if defined(__x86_64__) && !defined(__SANITIZE_ADDRESS__)

#define FETCHES_MAX 4096
#define TRAP_FLAG   0x100
#define WRITE_FAULT 2
#define DATA        16u
#define LENGTH      ((uint32_t)sizeof (struct nvs_reply) + DATA)

static unsigned char *ours;
static unsigned char *theirs;
static size_t fetches[FETCHES_MAX]; /* offsets in the lane */
static int fetches_count;
static bool reads;

static void
set_step (void *context, bool on)
{
    greg_t *flags = &((ucontext_t *)context)->uc_mcontext.gregs[REG_EFL];

    *flags = on ? *flags | TRAP_FLAG : *flags & ~(greg_t)TRAP_FLAG;
}

static void
on_access (int number, siginfo_t *info, void *context)
{
    size_t at = (size_t)((unsigned char *)info->si_addr - ours);

    if (at >= NVS_LANE_SIZE || fetches_count == FETCHES_MAX) {
        (void)signal (number, SIG_DFL); /* a real one: it comes again */
        return;
    }
    reads = (((ucontext_t *)context)->uc_mcontext.gregs[REG_ERR] & WRITE_FAULT) == 0;
    fetches[fetches_count++] = at;
    (void)mprotect (ours, NVS_LANE_SIZE, PROT_READ | PROT_WRITE);
    set_step (context, true);
}

static void
on_step (int number, siginfo_t *info, void *context)
{
    (void)number;
    (void)info;
    set_step (context, false);
    if (reads)
        theirs[fetches[fetches_count - 1]] ^= 0xffu;
    (void)mprotect (ours, NVS_LANE_SIZE, PROT_NONE);
}

static void
begin (void)
{
    fetches_count = 0;
    (void)mprotect (ours, NVS_LANE_SIZE, PROT_NONE);
}

/* How often something at this place was accessed. */
static int
fetched (size_t at)
{
    int count = 0;

    for (int i = 0; i < fetches_count; i++)
        count += fetches[i] == at;
    return count;
}

/* The most often that any place between these two was accessed. */
static int
end (size_t from, size_t to)
{
    int most = 0;

    (void)mprotect (ours, NVS_LANE_SIZE, PROT_READ | PROT_WRITE);
    for (int i = 0; i < fetches_count; i++)
        if (fetches[i] >= from && fetches[i] < to && fetched (fetches[i]) > most)
            most = fetched (fetches[i]);
    return most;
}

static struct nvs_caller_lane *
open_lane (void)
{
    struct sigaction access = { .sa_sigaction = on_access, .sa_flags = SA_SIGINFO };
    struct sigaction step = { .sa_sigaction = on_step, .sa_flags = SA_SIGINFO };
    struct nvs_error error;
    int32_t fd = -1;
    struct nvs_caller_lane *lane = nvs_lane_new (1, &fd, &error);
    void *mapped = lane != NULL ? mmap (NULL, NVS_LANE_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) : MAP_FAILED;

    if (mapped == MAP_FAILED) {
        printf ("Bail out! no lane\n");
        exit (1);
    }
    theirs = mapped;
    ours = nvs_lane_frame (lane) - NVS_LANE_DATA;
    (void)sigaction (SIGSEGV, &access, NULL);
    (void)sigaction (SIGTRAP, &step, NULL);
    return lane;
}

/* A request, and the answer to it: 16 bytes of data. */
static size_t
answer (struct nvs_caller_lane *lane, uint32_t number)
{
    struct nvs_lane *shared = (struct nvs_lane *)(void *)theirs;
    struct nvs_reply reply = { .data_len = DATA, .result = 7 };
    unsigned char *at = theirs + NVS_LANE_DATA;

    SAME (nvs_lane_submit (lane, "request", sizeof "request"), 0);
    memcpy (at, &reply, sizeof reply);
    memset (at + sizeof reply, 'd', DATA);
    atomic_store (&shared->reply_length, LENGTH);
    atomic_store (&shared->reply, number);
    return (size_t)(at - theirs);
}

static void
test_the_copy (struct nvs_caller_lane *lane, uint32_t number, bool long_wait)
{
    const struct nvs_end no_end = { -1, 0 };
    static unsigned char reply[4096];
    size_t at = answer (lane, number);
    uint32_t length = 0;
    int status;

    begin ();
    if (long_wait)
        status = nvs_lane_wait_on (lane, &no_end, 0, reply, sizeof reply, &length);
    else
        status = nvs_lane_wait (lane, 0, reply, sizeof reply, &length);
    SAME (end (at, at + LENGTH), 1); /* at all: it was looked at */
    SAME (fetched (offsetof (struct nvs_lane, reply_length)), 1);
    SAME (status, NVS_WAIT_DONE);
    SAME (length, LENGTH);
    SAME (reply[LENGTH - 1], 'd');
}

static void
test_the_short_way (struct nvs_caller_lane *lane, uint32_t number)
{
    size_t at = answer (lane, number);
    enum nvs_answer_kind kind;
    const unsigned char *data;
    int32_t result = 0;
    uint32_t length;

    begin ();
    length = nvs_lane_reply_length (lane);
    kind = nvs_reply_read (nvs_lane_frame (lane), length, DATA, &result, &data);
    SAME (end (at, at + sizeof (struct nvs_reply)), 1);
    SAME (fetched (offsetof (struct nvs_lane, reply_length)), 1);
    SAME (length, LENGTH);
    SAME (kind, NVS_ANSWERED);
    SAME (result, 7);
}

/* That this program would see it. */
static void
test_a_second_look (void)
{
    const volatile uint32_t *word = (const volatile uint32_t *)(const void *)(ours + NVS_LANE_DATA);
    uint32_t first;
    uint32_t second;

    begin ();
    first = *word;
    second = *word;
    SAME (end (0, NVS_LANE_SIZE), 2);
    TRUE (first != second);
}

int
main (void)
{
    struct nvs_caller_lane *lane;

    if (tap_under_valgrind ()) {
        printf ("1..0 # SKIP valgrind has no single step\n");
        return 0;
    }
    lane = open_lane ();
    test_the_copy (lane, 1, false);
    test_the_copy (lane, 2, true);
    test_the_short_way (lane, 3);
    test_a_second_look ();
    nvs_lane_free (lane, 0);
    (void)munmap (theirs, NVS_LANE_SIZE);
    return tap_done ();
}

#else

int
main (void)
{
    printf ("1..0 # SKIP for x86-64 without sanitizers\n");
    return 0;
}

#endif
