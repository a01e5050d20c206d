/* SPDX-License-Identifier: Apache-2.0 */
#include "lane.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008U /* Linux 6.3 */
#endif

/* Partner of this file: csrc/worker/channels.c, which serves what is submitted here. How its answer is waited for: wait.c. */

/* This thread may have fewer than others. */
static bool
several_cpus (void)
{
    cpu_set_t set;

    CPU_ZERO (&set);
    /* EINVAL means more CPUs than the set has room for. */
    if (sched_getaffinity (0, sizeof set, &set) != 0)
        return errno == EINVAL;
    return CPU_COUNT (&set) > 1;
}

static unsigned forks;
static pthread_once_t forks_once = PTHREAD_ONCE_INIT;
static int forks_errno;

static void
count_fork (void)
{
    forks++;
}

static void
watch_forks (void)
{
    forks_errno = pthread_atfork (NULL, NULL, count_fork);
}

/* Never to be executed, for with sysctl vm.memfd_noexec=2 Linux 6.3 to 6.5 give EINVAL where that is not said. Kernels
 * before 6.3 do not know the flag, and give EINVAL where it is. */
static int
new_memfd (void)
{
    int fd = memfd_create ("nvsandbox-lane", MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_NOEXEC_SEAL);

    if (fd < 0 && errno == EINVAL)
        fd = memfd_create ("nvsandbox-lane", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    return fd;
}

struct nvs_caller_lane *
nvs_lane_new (int looks, int32_t *fd, struct nvs_error *error)
{
    struct nvs_caller_lane *lane;
    void *shared;

    (void)pthread_once (&forks_once, watch_forks);
    if (forks_errno != 0) {
        (void)nvs_fail (error, NVS_STEP_CHANNEL, forks_errno, NULL, "pthread_atfork");
        return NULL;
    }
    lane = calloc (1, sizeof *lane);
    if (lane == NULL) {
        (void)nvs_fail (error, NVS_STEP_CHANNEL, ENOMEM, NULL, "allocating a lane");
        return NULL;
    }
    lane->fd = new_memfd ();
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
    /* A forked child must not speak on its parent's lane. Where the kernel refuses, the checks remain. */
    (void)madvise (shared, NVS_LANE_SIZE, MADV_DONTFORK);
    lane->magic = NVS_LANE_MAGIC;
    lane->shared = shared;
    lane->forks = &forks;
    lane->forks_before = forks;
    lane->looks = looks != 0 && several_cpus ();
    lane->shared->no_looking = looks == 0;
    lane->late_ns = NVS_LATE_NS;
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

/* mincore() says of any address whether something is mapped there, without touching it. */
int
nvs_lane_is_one (uintptr_t address)
{
    const uintptr_t page = (uintptr_t)sysconf (_SC_PAGESIZE);
    const struct nvs_caller_lane *lane = (const void *)address;
    const uintptr_t first = address & ~(page - 1);
    unsigned char resident[2];

    if (address == 0 || address % _Alignof (struct nvs_caller_lane) != 0 || address + sizeof *lane < address)
        return 0;
    if (mincore ((void *)first, address + sizeof *lane - first, resident) != 0)
        return 0;
    return lane->magic == NVS_LANE_MAGIC;
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
    return !nvs_lane_here (lane) || atomic_load_explicit (&lane->shared->taken, memory_order_acquire) == lane->number;
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
    lane->woken = atomic_load (&lane->shared->worker_sleeps) != 0;
    if (lane->woken)
        nvs_futex_wake (&lane->shared->request);
}

int
nvs_lane_submit (struct nvs_caller_lane *lane, const void *frame, size_t length)
{
    if (length > NVS_LANE_FRAME || !nvs_lane_here (lane))
        return -1;
    memcpy (nvs_lane_frame (lane), frame, length);
    nvs_lane_send (lane, (uint32_t)length);
    return 0;
}

int
nvs_lane_answered (const struct nvs_caller_lane *lane)
{
    return nvs_lane_here (lane) && atomic_load_explicit (&lane->shared->reply, memory_order_acquire) == lane->number;
}

uint32_t
nvs_lane_reply_length (const struct nvs_caller_lane *lane)
{
    uint32_t length = atomic_load_explicit (&lane->shared->reply_length, memory_order_relaxed);

    return length <= NVS_LANE_FRAME ? length : 0;
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
    if (nvs_lane_here (lane) && !forked) {
        atomic_store (&lane->shared->closed, 1);
        /* Changed as well, so that a worker between its look and its sleep does not sleep. */
        atomic_fetch_add (&lane->shared->request, 0x80000000u);
        nvs_futex_wake (&lane->shared->request);
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
    lane->magic = 0;
    free (lane);
}
