/* SPDX-License-Identifier: Apache-2.0 */
/* How a caller waits, against a worker that this file plays: when it looks, when it stops looking, and when it lets it be. */
#include <pthread.h>
#include <sched.h>
#include <stdbool.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "../worker/tap.h"
#include "core.h"

#define US        1000
#define MS        1000000
#define ELSEWHERE 100000u /* a CPU that there is not */

static struct nvs_lane *theirs;
static uint32_t asked;

static int64_t
now_ns (void)
{
    struct timespec t;

    (void)clock_gettime (CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static struct nvs_caller_lane *
open_lane (int looks)
{
    struct nvs_error error;
    int32_t fd = -1;
    struct nvs_caller_lane *lane = nvs_lane_new (looks, &fd, &error);

    if (lane == NULL) {
        printf ("Bail out! no lane: %s\n", error.detail);
        exit (1);
    }
    theirs = mmap (NULL, NVS_LANE_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (theirs == MAP_FAILED) {
        printf ("Bail out! the lane cannot be mapped\n");
        exit (1);
    }
    asked = 0;
    return lane;
}

static void
close_lane (struct nvs_caller_lane *lane)
{
    nvs_lane_free (lane, 0);
    (void)munmap (theirs, NVS_LANE_SIZE);
}

/* A call that a worker on `cpu` has begun with (`taken`), and that is not answered. */
static int
unanswered (struct nvs_caller_lane *lane, struct nvs_pace *pace, struct nvs_crowd *crowd, bool taken, uint32_t cpu)
{
    (void)nvs_lane_submit (lane, "x", 1);
    asked++;
    atomic_store (&theirs->worker_cpu, cpu);
    atomic_store (&theirs->taken, taken ? asked : asked - 1);
    return nvs_lane_await (lane, pace, crowd, now_ns (), 200 * US);
}

static struct nvs_waits
waits_of (const struct nvs_caller_lane *lane)
{
    struct nvs_waits waits;

    nvs_lane_waits (lane, &waits);
    return waits;
}

/* A look that was of no use suspends looking, each time for twice as many calls; one that was ends that. */
static void
test_futile (void)
{
    struct nvs_caller_lane *lane = open_lane (1);
    struct nvs_crowd crowd = { .waiting = 1, .looking_max = 1 };
    struct nvs_pace pace = { 0 };
    static const uint64_t looks[] = { 1, 1, 2, 2, 2, 3, 3, 3, 3, 3, 4 };

    for (size_t i = 0; i < sizeof looks / sizeof *looks; i++) {
        SAME (unanswered (lane, &pace, &crowd, true, ELSEWHERE), 0);
        SAME (waits_of (lane).looks, looks[i]);
        SAME (waits_of (lane).futile, looks[i]);
    }
    for (int i = 0; i < 300; i++)
        (void)unanswered (lane, &pace, &crowd, true, ELSEWHERE);
    TRUE (waits_of (lane).looks <= 12);
    while (pace.hold > 0)
        (void)unanswered (lane, &pace, &crowd, true, ELSEWHERE);
    (void)nvs_lane_submit (lane, "x", 1);
    atomic_store (&theirs->reply, ++asked);
    SAME (nvs_lane_await (lane, &pace, &crowd, now_ns (), 200 * US), 1);
    SAME (pace.hold, 0);
    SAME (pace.penalty, 0);
    close_lane (lane);
}

/* Who has no CPU is not looked at, and a call that others wait beside neither; that costs no call its next look. */
static void
test_hopeless (void)
{
    struct nvs_caller_lane *lane = open_lane (1);
    struct nvs_crowd crowd = { .waiting = 1, .looking_max = 1 };
    struct nvs_pace pace = { 0 };
    cpu_set_t before;
    cpu_set_t one;
    int cpu;

    SAME (unanswered (lane, &pace, &crowd, false, ELSEWHERE), 0);
    SAME (waits_of (lane).looks, 1);
    SAME (waits_of (lane).hopeless, 1);

    SAME (sched_getaffinity (0, sizeof before, &before), 0);
    cpu = sched_getcpu ();
    CPU_ZERO (&one);
    CPU_SET ((size_t)cpu, &one);
    SAME (sched_setaffinity (0, sizeof one, &one), 0);
    SAME (unanswered (lane, &pace, &crowd, true, (uint32_t)cpu), 0);
    SAME (sched_setaffinity (0, sizeof before, &before), 0);
    SAME (waits_of (lane).looks, 2);
    SAME (waits_of (lane).hopeless, 2);

    crowd.waiting = 2;
    SAME (unanswered (lane, &pace, &crowd, true, ELSEWHERE), 0);
    SAME (waits_of (lane).looks, 2);
    SAME (waits_of (lane).futile, 0);
    SAME (pace.hold, 0);
    close_lane (lane);
}

/* With one CPU for both nobody looks, and the worker is told. */
static void
test_alone (void)
{
    struct nvs_caller_lane *lane = open_lane (0);
    struct nvs_crowd crowd = { .waiting = 1, .looking_max = 1 };
    struct nvs_pace pace = { 0 };

    TRUE (theirs->no_looking != 0);
    SAME (unanswered (lane, &pace, &crowd, true, ELSEWHERE), 0);
    SAME (waits_of (lane).looks, 0);
    SAME (waits_of (lane).sleeps, 1);
    close_lane (lane);
}

/* Whatever the worker writes, a wait is not longer than it was asked to be. An upper bound that only a wait without end fails. */
static void
test_ends (void)
{
    struct nvs_caller_lane *lane = open_lane (1);
    struct nvs_crowd crowd = { .waiting = 1, .looking_max = 1 };
    const int64_t start = now_ns ();

    for (uint32_t i = 0; i < 100; i++) {
        struct nvs_pace pace = { .usual_ns = (int64_t)i * 100 * US };

        atomic_store (&theirs->worker_sleeps, i % 2);
        SAME (unanswered (lane, &pace, &crowd, i % 3 != 0, i * 0x1010101u), 0);
    }
    TRUE (now_ns () - start < (int64_t)20000 * MS);
    close_lane (lane);
}

static void *
answer_late (void *argument)
{
    const struct timespec pause = { 0, 2 * MS };

    (void)argument;
    (void)nanosleep (&pause, NULL);
    atomic_store (&theirs->reply, 1);
    return NULL;
}

/* How long a function takes is learned. */
static void
test_learns (void)
{
    struct nvs_caller_lane *lane = open_lane (1);
    struct nvs_crowd crowd = { .waiting = 1, .looking_max = 1 };
    struct nvs_pace pace = { 0 };
    pthread_t thread;
    int64_t start;

    (void)nvs_lane_submit (lane, "x", 1);
    start = now_ns ();
    SAME (pthread_create (&thread, NULL, answer_late, NULL), 0);
    while (!nvs_lane_await (lane, &pace, &crowd, start, 20 * MS))
        continue;
    (void)pthread_join (thread, NULL);
    TRUE (pace.usual_ns > MS);
    TRUE (pace.usual_ns <= now_ns () - start);
    close_lane (lane);
}

int
main (void)
{
    cpu_set_t set;

    test_alone ();
    test_ends ();
    test_learns ();
    if (sched_getaffinity (0, sizeof set, &set) == 0 && CPU_COUNT (&set) > 1) {
        test_futile ();
        test_hopeless ();
    } else
        printf ("ok %d - looking # SKIP there is one CPU\n", ++tap_number);
    return tap_done ();
}
