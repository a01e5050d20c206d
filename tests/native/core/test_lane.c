/* SPDX-License-Identifier: Apache-2.0 */
/* The caller's end of a lane, against a worker that this file plays: an honest one, a slow one and a hostile one. */
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "../worker/tap.h"
#include "core.h"

#define MS 1000000

struct peer {
    struct nvs_lane *lane;
    uint32_t reply_length; /* what it says, whatever it wrote */
    uint32_t ahead;        /* added to the number that it answers */
    int delay_ms;
    int count;
};

static unsigned char reply[NVS_LANE_FRAME];

static void
sleep_ms (int ms)
{
    struct timespec t = { .tv_sec = ms / 1000, .tv_nsec = (long)(ms % 1000) * MS };

    while (nanosleep (&t, &t) != 0 && errno == EINTR)
        continue;
}

/* Answers `count` requests with the request's own bytes, each plus one. */
static void *
play (void *argument)
{
    struct peer *peer = argument;
    unsigned char *data = (unsigned char *)peer->lane + NVS_LANE_DATA;
    uint32_t seen = 0;

    for (int i = 0; i < peer->count; i++) {
        uint32_t number;

        while ((number = atomic_load (&peer->lane->request)) == seen)
            sleep_ms (0);
        seen = number;
        if (peer->delay_ms > 0)
            sleep_ms (peer->delay_ms);
        for (uint32_t j = 0; j < atomic_load (&peer->lane->request_length); j++)
            data[j]++;
        atomic_store (&peer->lane->reply_length, peer->reply_length);
        atomic_store (&peer->lane->reply, number + peer->ahead);
        if (atomic_load (&peer->lane->caller_sleeps) != 0)
            (void)syscall (SYS_futex, &peer->lane->reply, FUTEX_WAKE, 1, NULL, NULL, 0);
    }
    return NULL;
}

static struct nvs_caller_lane *
open_lane (struct peer *peer)
{
    struct nvs_error error;
    int32_t fd = -1;
    struct nvs_caller_lane *lane = nvs_lane_new (1, &fd, &error);

    if (lane == NULL) {
        printf ("Bail out! no lane: %s\n", error.detail);
        exit (1);
    }
    peer->lane = mmap (NULL, NVS_LANE_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (peer->lane == MAP_FAILED) {
        printf ("Bail out! the lane cannot be mapped\n");
        exit (1);
    }
    return lane;
}

static void
test_memory (void)
{
    struct nvs_error error;
    struct stat st;
    int32_t fd = -1;
    struct nvs_caller_lane *lane = nvs_lane_new (1, &fd, &error);

    TRUE (lane != NULL);
    SAME (fstat (fd, &st), 0);
    SAME (st.st_size, NVS_LANE_SIZE);
    SAME (fcntl (fd, F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
    /* And F_SEAL_EXEC (0x20), where the kernel has it: Linux 6.3. */
    SAME (fcntl (fd, F_GET_SEALS) & ~0x20, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
    SAME (ftruncate (fd, 0), -1);
    nvs_lane_sent (lane);
    SAME (fcntl (fd, F_GETFD), -1); /* closed */
    nvs_lane_sent (lane);           /* twice does nothing */
    nvs_lane_free (lane, 0);
    nvs_lane_free (NULL, 0);
}

static void
test_calls (void)
{
    struct peer peer = { .reply_length = 3, .count = 1000 };
    struct nvs_caller_lane *lane = open_lane (&peer);
    unsigned char frame[3];
    uint32_t length = 0;
    pthread_t thread;
    int wrong = 0;

    SAME (pthread_create (&thread, NULL, play, &peer), 0);
    for (int i = 0; i < peer.count; i++) {
        int status;

        memset (frame, i, sizeof frame);
        status = nvs_lane_call (lane, frame, sizeof frame, 20 * MS, reply, sizeof reply, &length);
        while (status == NVS_WAIT_PENDING)
            status = nvs_lane_wait (lane, 20 * MS, reply, sizeof reply, &length);
        wrong += status != NVS_WAIT_DONE || length != sizeof frame || reply[2] != (unsigned char)(i + 1);
    }
    SAME (wrong, 0);
    (void)pthread_join (thread, NULL);
    nvs_lane_free (lane, 0);
    SAME (atomic_load (&peer.lane->closed), 1);
    (void)munmap (peer.lane, NVS_LANE_SIZE);
}

static void
test_pending (void)
{
    struct peer peer = { .reply_length = 1, .delay_ms = 60, .count = 1 };
    struct nvs_caller_lane *lane = open_lane (&peer);
    uint32_t length = 0;
    int waits = 0;
    pthread_t thread;
    int status;

    SAME (pthread_create (&thread, NULL, play, &peer), 0);
    SAME (nvs_lane_call (lane, "x", 1, 5 * MS, reply, sizeof reply, &length), NVS_WAIT_PENDING);
    SAME (nvs_lane_wait (lane, 0, reply, sizeof reply, &length), NVS_WAIT_PENDING);
    while ((status = nvs_lane_wait (lane, 10 * MS, reply, sizeof reply, &length)) == NVS_WAIT_PENDING)
        waits++;
    SAME (status, NVS_WAIT_DONE);
    TRUE (waits >= 1);
    SAME (reply[0], 'x' + 1);
    (void)pthread_join (thread, NULL);
    nvs_lane_free (lane, 0);
    (void)munmap (peer.lane, NVS_LANE_SIZE);
}

/* What a worker must not write is not followed. */
static void
test_hostile (void)
{
    static const uint32_t lengths[] = { NVS_LANE_FRAME + 1, 0x80000000u, UINT32_MAX };
    struct peer peer = { .count = 1 };
    struct nvs_caller_lane *lane;
    uint32_t length;
    pthread_t thread;

    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        peer.reply_length = lengths[i];
        lane = open_lane (&peer);
        SAME (pthread_create (&thread, NULL, play, &peer), 0);
        SAME (nvs_lane_submit (lane, "x", 1), 0);
        (void)pthread_join (thread, NULL);
        length = 7;
        SAME (nvs_lane_wait (lane, MS, reply, sizeof reply, &length), NVS_WAIT_BROKEN);
        SAME (length, 7);
        nvs_lane_free (lane, 0);
        (void)munmap (peer.lane, NVS_LANE_SIZE);
    }

    /* As long as the lane, but longer than what the caller has room for. */
    peer.reply_length = 4096;
    lane = open_lane (&peer);
    SAME (pthread_create (&thread, NULL, play, &peer), 0);
    SAME (nvs_lane_submit (lane, "x", 1), 0);
    (void)pthread_join (thread, NULL);
    SAME (nvs_lane_wait (lane, MS, reply, 4095, &length), NVS_WAIT_BROKEN);
    nvs_lane_free (lane, 0);
    (void)munmap (peer.lane, NVS_LANE_SIZE);

    /* The number of another request is no answer. */
    peer.reply_length = 1;
    peer.ahead = 1;
    lane = open_lane (&peer);
    SAME (pthread_create (&thread, NULL, play, &peer), 0);
    SAME (nvs_lane_submit (lane, "x", 1), 0);
    (void)pthread_join (thread, NULL);
    SAME (nvs_lane_wait (lane, MS, reply, sizeof reply, &length), NVS_WAIT_PENDING);
    nvs_lane_free (lane, 0);
    (void)munmap (peer.lane, NVS_LANE_SIZE);
}

static void
test_too_long (void)
{
    static unsigned char frame[NVS_LANE_FRAME + 1];
    struct peer peer = { .reply_length = NVS_LANE_FRAME, .count = 1 };
    struct nvs_caller_lane *lane = open_lane (&peer);
    uint32_t length = 0;
    pthread_t thread;
    int status;

    SAME (nvs_lane_submit (lane, frame, sizeof frame), -1);
    SAME (nvs_lane_call (lane, frame, sizeof frame, MS, reply, sizeof reply, &length), NVS_WAIT_BROKEN);
    SAME (atomic_load (&peer.lane->request), 0); /* nothing was asked */
    SAME (pthread_create (&thread, NULL, play, &peer), 0);
    status = nvs_lane_call (lane, frame, NVS_LANE_FRAME, 1000 * (int64_t)MS, reply, sizeof reply, &length);
    while (status == NVS_WAIT_PENDING)
        status = nvs_lane_wait (lane, 20 * MS, reply, sizeof reply, &length);
    SAME (status, NVS_WAIT_DONE);
    SAME (length, NVS_LANE_FRAME);
    SAME (reply[NVS_LANE_FRAME - 1], 1);
    (void)pthread_join (thread, NULL);
    nvs_lane_free (lane, 0);
    (void)munmap (peer.lane, NVS_LANE_SIZE);
}

static void
on_alarm (int number)
{
    (void)number;
}

/* Python's handlers run between two waits, so a signal has to end one. */
static void
test_signal (void)
{
    struct sigaction action = { .sa_handler = on_alarm, .sa_flags = SA_RESTART };
    struct timespec before;
    struct timespec after;
    struct peer peer = { .count = 0 };
    struct nvs_caller_lane *lane = open_lane (&peer);
    uint32_t length = 0;

    (void)sigaction (SIGALRM, &action, NULL);
    SAME (nvs_lane_submit (lane, "x", 1), 0);
    (void)clock_gettime (CLOCK_MONOTONIC, &before);
    (void)alarm (1);
    SAME (nvs_lane_wait (lane, 30000 * (int64_t)MS, reply, sizeof reply, &length), NVS_WAIT_PENDING);
    (void)clock_gettime (CLOCK_MONOTONIC, &after);
    TRUE (after.tv_sec - before.tv_sec < 20);
    nvs_lane_free (lane, 0);
    (void)munmap (peer.lane, NVS_LANE_SIZE);
}

/* A long wait ends by the reply, by a signal, and where the worker has come to its end or is to be ended; by none of them as late
 * as the wait might. A pipe is the worker's pidfd here: readable when the other end is closed. */
static void
test_long_wait (void)
{
    const int64_t long_ns = 60000 * (int64_t)MS;
    struct peer peer = { .reply_length = 1, .delay_ms = 150, .count = 1 };
    struct nvs_caller_lane *lane = open_lane (&peer);
    struct nvs_end end = { .pidfd = -1 };
    uint32_t length = 0;
    struct timespec before;
    struct timespec after;
    pthread_t thread;
    int ends[2];

    (void)clock_gettime (CLOCK_MONOTONIC, &before);
    SAME (pipe (ends), 0);
    SAME (pthread_create (&thread, NULL, play, &peer), 0);
    SAME (nvs_lane_call (lane, "x", 1, MS, reply, sizeof reply, &length), NVS_WAIT_PENDING);
    SAME (nvs_lane_wait_on (lane, &end, long_ns, reply, sizeof reply, &length), NVS_WAIT_PENDING); /* others look */
    end.pidfd = ends[0];
    SAME (nvs_lane_wait_on (lane, &end, MS, reply, sizeof reply, &length), NVS_WAIT_PENDING);
    SAME (nvs_lane_wait_on (lane, &end, long_ns, reply, sizeof reply, &length), NVS_WAIT_DONE);
    SAME (reply[0], 'x' + 1);
    (void)pthread_join (thread, NULL);

    SAME (nvs_lane_submit (lane, "x", 1), 0);
    (void)alarm (1);
    SAME (nvs_lane_wait_on (lane, &end, long_ns, reply, sizeof reply, &length), NVS_WAIT_PENDING);
    end.stopping = 1;
    SAME (nvs_lane_wait_on (lane, &end, long_ns, reply, sizeof reply, &length), NVS_WAIT_PENDING);
    end.stopping = 0;
    (void)close (ends[1]);
    SAME (nvs_lane_wait_on (lane, &end, long_ns, reply, sizeof reply, &length), NVS_WAIT_PENDING);
    (void)clock_gettime (CLOCK_MONOTONIC, &after);
    TRUE (after.tv_sec - before.tv_sec < 20);
    (void)close (ends[0]);
    nvs_lane_free (lane, 0);
    (void)munmap (peer.lane, NVS_LANE_SIZE);
}

/* In a forked child the memory is not there, and freeing touches nothing of the parent's. */
static void
test_forked (void)
{
    struct peer peer = { .count = 0 };
    struct nvs_caller_lane *lane = open_lane (&peer);
    struct nvs_pace pace = { 0 };
    struct nvs_crowd crowd = { .looking_max = 1 };
    uint32_t length = 0;

    SAME (nvs_lane_enter (lane), 1);
    SAME (nvs_lane_submit (lane, "x", 1), 0);
    nvs_lane_close (lane, 1);
    SAME (atomic_load (&peer.lane->closed), 0);
    SAME (atomic_load (&peer.lane->request), 1);
    /* A call that was under way, and one more. */
    SAME (nvs_lane_await (lane, &pace, &crowd, 0, MS), 0);
    SAME (nvs_lane_sleep (lane, MS), 0);
    SAME (nvs_lane_answered (lane), 0);
    SAME (nvs_lane_taken (lane), 1);
    SAME (nvs_lane_wait (lane, MS, reply, sizeof reply, &length), NVS_WAIT_PENDING);
    SAME (nvs_lane_wait_on (lane, &(struct nvs_end){ -1, 0 }, MS, reply, sizeof reply, &length), NVS_WAIT_PENDING);
    SAME (nvs_lane_call (lane, "x", 1, MS, reply, sizeof reply, &length), NVS_WAIT_BROKEN);
    nvs_lane_leave (lane);
    nvs_lane_free (lane, 1);
    SAME (atomic_load (&peer.lane->request), 1);
    (void)munmap (peer.lane, NVS_LANE_SIZE);
}

int
main (void)
{
    test_memory ();
    test_calls ();
    test_pending ();
    test_hostile ();
    test_too_long ();
    test_signal ();
    test_long_wait ();
    test_forked ();
    return tap_done ();
}
