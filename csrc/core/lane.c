/* SPDX-License-Identifier: Apache-2.0 */
#include "core.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* How long to look at the reply's number before sleeping. A futex sleep and wake cost more than 10 us; most getters
 * that read a cached value answer within this. */
#define SPIN_NS 20000

/* Partner of this file: csrc/worker/channels.c, which serves what is submitted here. */
struct nvs_caller_lane {
    struct nvs_lane *shared;
    uint32_t number; /* of the last request, our own copy: what `request` holds may have been written by the worker */
    int fd;
    _Atomic int busy;
    int spins; /* 0 with one CPU: the worker could not answer while we look */
};

static void
futex_wait (_Atomic uint32_t *word, uint32_t value, const struct timespec *timeout)
{
    (void)syscall (SYS_futex, (void *)word, FUTEX_WAIT, value, timeout, NULL, 0);
}

static void
futex_wake (_Atomic uint32_t *word)
{
    (void)syscall (SYS_futex, (void *)word, FUTEX_WAKE, 1, NULL, NULL, 0);
}

static int64_t
now_ns (void)
{
    struct timespec t = { 0, 0 };

    (void)clock_gettime (CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static void
relax (void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause ();
#elif defined(__aarch64__)
    __asm__ volatile ("yield" ::: "memory");
#endif
}

static int
several_cpus (void)
{
    cpu_set_t set;

    CPU_ZERO (&set);
    /* EINVAL means more CPUs than the set has room for. */
    if (sched_getaffinity (0, sizeof set, &set) != 0)
        return errno == EINVAL;
    return CPU_COUNT (&set) > 1;
}

struct nvs_caller_lane *
nvs_lane_new (int32_t *fd, struct nvs_error *error)
{
    struct nvs_caller_lane *lane;
    void *shared;

    lane = calloc (1, sizeof *lane);
    if (lane == NULL) {
        (void)nvs_fail (error, NVS_STEP_CHANNEL, ENOMEM, NULL, "allocating a lane");
        return NULL;
    }
    lane->fd = memfd_create ("nvsandbox-lane", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (lane->fd < 0) {
        (void)nvs_fail (error, NVS_STEP_CHANNEL, errno, NULL, "memfd_create");
        free (lane);
        return NULL;
    }
    /* Sealed against shrinking, or whoever holds it could make the other side die of SIGBUS. */
    if (ftruncate (lane->fd, NVS_LANE_SIZE) != 0
        || fcntl (lane->fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
        (void)nvs_fail (error, NVS_STEP_CHANNEL, errno, NULL, "sizing and sealing a lane of %u bytes", NVS_LANE_SIZE);
        (void)close (lane->fd);
        free (lane);
        return NULL;
    }
    shared = mmap (NULL, NVS_LANE_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, lane->fd, 0);
    if (shared == MAP_FAILED) {
        (void)nvs_fail (error, NVS_STEP_CHANNEL, errno, NULL, "mapping a lane of %u bytes", NVS_LANE_SIZE);
        (void)close (lane->fd);
        free (lane);
        return NULL;
    }
    /* A forked child must not speak on its parent's lane. Where the kernel refuses, the check in Python remains. */
    (void)madvise (shared, NVS_LANE_SIZE, MADV_DONTFORK);
    lane->shared = shared;
    lane->spins = several_cpus ();
    *fd = lane->fd;
    return lane;
}

void
nvs_lane_sent (struct nvs_caller_lane *lane)
{
    if (lane->fd >= 0)
        (void)close (lane->fd);
    lane->fd = -1;
}

int
nvs_lane_enter (struct nvs_caller_lane *lane)
{
    int idle = 0;

    return atomic_compare_exchange_strong_explicit (&lane->busy, &idle, 1, memory_order_acquire, memory_order_relaxed);
}

void
nvs_lane_leave (struct nvs_caller_lane *lane)
{
    atomic_store_explicit (&lane->busy, 0, memory_order_release);
}

int
nvs_lane_busy (const struct nvs_caller_lane *lane)
{
    return atomic_load_explicit (&lane->busy, memory_order_acquire);
}

int
nvs_lane_taken (const struct nvs_caller_lane *lane)
{
    return atomic_load_explicit (&lane->shared->taken, memory_order_acquire) == lane->number;
}

unsigned char *
nvs_lane_frame (struct nvs_caller_lane *lane)
{
    return (unsigned char *)lane->shared + NVS_LANE_DATA;
}

void
nvs_lane_send (struct nvs_caller_lane *lane, uint32_t length)
{
    atomic_store_explicit (&lane->shared->request_length, length, memory_order_relaxed);
    lane->number++;
    /* Sequentially consistent, as the worker's store of worker_sleeps is: one of the two sees the other's. */
    atomic_store (&lane->shared->request, lane->number);
    if (atomic_load (&lane->shared->worker_sleeps) != 0)
        futex_wake (&lane->shared->request);
}

int
nvs_lane_submit (struct nvs_caller_lane *lane, const void *frame, size_t length)
{
    if (length > NVS_LANE_FRAME)
        return -1;
    memcpy (nvs_lane_frame (lane), frame, length);
    nvs_lane_send (lane, (uint32_t)length);
    return 0;
}

int
nvs_lane_answered (const struct nvs_caller_lane *lane)
{
    return atomic_load_explicit (&lane->shared->reply, memory_order_acquire) == lane->number;
}

int
nvs_lane_spin (struct nvs_caller_lane *lane, int64_t spin_ns)
{
    int64_t start = 0;

    if (lane->spins == 0 || spin_ns <= 0)
        return nvs_lane_answered (lane);
    for (;;) {
        int64_t now;

        /* The clock costs as much as many looks. */
        for (int i = 0; i < 32; i++) {
            if (nvs_lane_answered (lane))
                return 1;
            relax ();
        }
        now = now_ns ();
        if (start == 0)
            start = now;
        if (now - start >= spin_ns)
            return nvs_lane_answered (lane);
    }
}

int
nvs_lane_sleep (struct nvs_caller_lane *lane, int64_t wait_ns)
{
    struct timespec timeout = { .tv_sec = (time_t)(wait_ns / 1000000000), .tv_nsec = (long)(wait_ns % 1000000000) };
    uint32_t seen;

    if (wait_ns > 0) {
        /* Say that we sleep, then look again, then sleep only if nothing has changed since: the worker stores the
         * reply's number before it looks at caller_sleeps. One wait, not a loop: a signal, for which Python has a
         * handler to run, ends it. */
        atomic_store (&lane->shared->caller_sleeps, 1);
        seen = atomic_load (&lane->shared->reply);
        if (seen != lane->number)
            futex_wait (&lane->shared->reply, seen, &timeout);
        atomic_store_explicit (&lane->shared->caller_sleeps, 0, memory_order_relaxed);
    }
    return nvs_lane_answered (lane);
}

uint32_t
nvs_lane_reply_length (const struct nvs_caller_lane *lane)
{
    uint32_t length = atomic_load_explicit (&lane->shared->reply_length, memory_order_relaxed);

    return length <= NVS_LANE_FRAME ? length : 0;
}

int
nvs_lane_wait (struct nvs_caller_lane *lane, int64_t wait_ns, void *reply, size_t capacity, uint32_t *length)
{
    int64_t start = now_ns ();
    uint32_t size;

    if (!nvs_lane_spin (lane, wait_ns < SPIN_NS ? wait_ns : SPIN_NS)
        && !nvs_lane_sleep (lane, wait_ns - (now_ns () - start)))
        return NVS_WAIT_PENDING;
    /* Read once; the bytes are copied before anyone looks at them. */
    size = atomic_load_explicit (&lane->shared->reply_length, memory_order_relaxed);
    if (size > NVS_LANE_FRAME || size > capacity)
        return NVS_WAIT_BROKEN;
    memcpy (reply, nvs_lane_frame (lane), size);
    *length = size;
    return NVS_WAIT_DONE;
}

int
nvs_lane_call (struct nvs_caller_lane *lane, const void *frame, size_t length, int64_t wait_ns, void *reply,
               size_t capacity, uint32_t *reply_length)
{
    if (nvs_lane_submit (lane, frame, length) != 0)
        return NVS_WAIT_BROKEN;
    return nvs_lane_wait (lane, wait_ns, reply, capacity, reply_length);
}

void
nvs_lane_close (struct nvs_caller_lane *lane, int forked)
{
    if (lane->shared != NULL && !forked) {
        atomic_store (&lane->shared->closed, 1);
        /* Changed as well, so that a worker between its look and its sleep does not sleep. */
        atomic_fetch_add (&lane->shared->request, 0x80000000u);
        futex_wake (&lane->shared->request);
        (void)munmap (lane->shared, NVS_LANE_SIZE);
    }
    lane->shared = NULL;
    atomic_store (&lane->busy, 1); /* for good: nobody enters any more */
    if (lane->fd >= 0)
        (void)close (lane->fd);
    lane->fd = -1;
}

void
nvs_lane_free (struct nvs_caller_lane *lane, int forked)
{
    if (lane == NULL)
        return;
    nvs_lane_close (lane, forked);
    free (lane);
}
