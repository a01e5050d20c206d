/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How a caller waits for its reply. Sleeping costs nothing, but to be woken takes tens of microseconds on a virtual machine: more
 * than most calls. Looking (reading the reply's number again and again) sees the reply at once, and keeps a CPU busy, which is a
 * loss wherever the worker needs that CPU. So who waits looks only
 *
 *   - while the worker is seen to be at work on another CPU than ours;
 *   - when no more calls wait at once than half of the CPUs;
 *   - around the time at which this function usually answers, and sleeps until shortly before;
 *   - if that has been of use lately: each time that it was not, twice as many calls do without.
 *
 * What the worker writes decides about looking, never about how long is waited.
 */
#include "lane.h"

#include <linux/futex.h>
#include <poll.h>
#include <sched.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "clock.h"

/* How long the marshaller's calls look at the reply's number before sleeping. */
#define SPIN_NS 20000
/* A worker that looks out for requests has taken one within this, or it has no CPU. */
#define TAKE_NS 4000
/* What looking is allowed beyond the usual time, and at most. */
#define LOOK_SPARE_NS 60000
#define LOOK_MAX_NS   250000
/* Not worth a look: being woken is less than a hundredth. */
#define LONG_NS 10000000
/* A shorter sleep is mostly its own beginning and end. */
#define NAP_NS 40000
/* Assumed of a sleep's end: that it comes so much later than its cause. */
#define WAKE_NS     30000
#define LATE_MAX_NS 300000
#define HOLD_MAX    64
/* From one look whether the worker lives to the next. */
#define ALIVE_NS 20000000

static void
futex_wait (_Atomic uint32_t *word, uint32_t value, const struct timespec *timeout)
{
    (void)syscall (SYS_futex, (void *)word, FUTEX_WAIT, value, timeout, NULL, 0);
}

void
nvs_futex_wake (_Atomic uint32_t *word)
{
    (void)syscall (SYS_futex, (void *)word, FUTEX_WAKE, 1, NULL, NULL, 0);
}

static int64_t
least (int64_t a, int64_t b)
{
    return a < b ? a : b;
}

int
nvs_lane_spins (const struct nvs_caller_lane *lane)
{
    /* A worker that had to be woken is not back within a spin, and may want this very CPU. */
    return lane->looks && !lane->woken;
}

int
nvs_lane_spin (struct nvs_caller_lane *lane, int64_t spin_ns)
{
    int64_t start = 0;

    if (!nvs_lane_spins (lane) || spin_ns <= 0)
        return nvs_lane_answered (lane);
    for (;;) {
        int64_t now;

        /* The clock costs as much as many looks. */
        for (int i = 0; i < 32; i++) {
            if (nvs_lane_answered (lane))
                return 1;
            nvs_relax ();
        }
        now = nvs_now_ns ();
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

    if (wait_ns > 0 && nvs_lane_here (lane)) {
        lane->waits.sleeps++;
        /* Say that we sleep, then look again, then sleep only if nothing has changed since: the worker stores the
         * reply's number before it looks at caller_sleeps. One wait, not a loop: a signal, for which Python has a
         * handler to run, ends it. */
        atomic_store (&lane->shared->caller_sleeps, 1u + (uint32_t)sched_getcpu ());
        seen = atomic_load (&lane->shared->reply);
        if (seen != lane->number)
            futex_wait (&lane->shared->reply, seen, &timeout);
        atomic_store_explicit (&lane->shared->caller_sleeps, 0, memory_order_relaxed);
    }
    return nvs_lane_answered (lane);
}

/* Whether the worker is at work on this call on another CPU. */
static bool
at_work_elsewhere (const struct nvs_caller_lane *lane)
{
    return nvs_lane_taken (lane)
           && atomic_load_explicit (&lane->shared->worker_cpu, memory_order_relaxed) != (uint32_t)sched_getcpu ();
}

enum looked {
    SEEN,
    NOT_YET,  /* in the time that was given */
    HOPELESS, /* the worker has no CPU, or others need ours */
};

static enum looked
look (struct nvs_caller_lane *lane, struct nvs_crowd *crowd, int64_t start, int64_t until)
{
    lane->waits.looks++;
    for (;;) {
        int64_t now;

        for (int i = 0; i < 32; i++) {
            if (nvs_lane_answered (lane))
                return SEEN;
            nvs_relax ();
        }
        now = nvs_now_ns ();
        if (now >= until)
            return nvs_lane_answered (lane) ? SEEN : NOT_YET;
        if (crowd->waiting > crowd->looking_max || (!at_work_elsewhere (lane) && now - start >= TAKE_NS))
            return nvs_lane_answered (lane) ? SEEN : HOPELESS;
    }
}

/* From a call that was answered after `taken_ns`, and how often somebody had to be woken for it. */
static void
learn (struct nvs_pace *pace, int64_t taken_ns, int wakes)
{
    taken_ns -= wakes * WAKE_NS;
    if (taken_ns < 1)
        taken_ns = 1;
    /* Down at once: it matters more that a reply is not slept through than that a look is short. */
    if (taken_ns < pace->usual_ns || pace->usual_ns == 0)
        pace->usual_ns = taken_ns;
    else
        pace->usual_ns += (taken_ns - pace->usual_ns) / 4;
}

/* A sleep until `wake`, shortly before the usual time. */
static int
nap (struct nvs_caller_lane *lane, int64_t wake)
{
    int64_t late;

    if (nvs_lane_sleep (lane, wake - nvs_now_ns ()))
        return 1;
    late = nvs_now_ns () - wake;
    if (late >= 0)
        lane->late_ns = least (late > lane->late_ns ? late : lane->late_ns - (lane->late_ns - late) / 8, LATE_MAX_NS);
    return 0;
}

int
nvs_lane_await (struct nvs_caller_lane *lane, struct nvs_pace *pace, struct nvs_crowd *crowd, int64_t since,
                int64_t wait_ns)
{
    const int64_t until = nvs_now_ns () + wait_ns;
    int64_t now = until - wait_ns;
    const int64_t wake = since + pace->usual_ns - pace->usual_ns / 16 - lane->late_ns;
    const bool naps = wake - now >= NAP_NS;
    int64_t look_until = since + pace->usual_ns + pace->usual_ns / 4 + LOOK_SPARE_NS;

    if (!nvs_lane_here (lane))
        return 0;
    /* A worker that had to be woken takes a while to begin, and may want this very CPU for that. */
    if (lane->looks && (naps || !lane->woken) && pace->usual_ns < LONG_NS && now - since < LONG_NS
        && crowd->waiting <= crowd->looking_max && (pace->hold == 0 || pace->hold-- == 0)) {
        if (naps) {
            if (nap (lane, least (wake, until))) {
                learn (pace, nvs_now_ns () - since, lane->woken ? 2 : 1);
                return 1;
            }
            now = nvs_now_ns ();
            if (now < wake)
                return 0; /* a signal */
        }
        if (look_until < now + LOOK_SPARE_NS)
            look_until = now + LOOK_SPARE_NS;
        switch (look (lane, crowd, now, least (least (look_until, now + LOOK_MAX_NS), until))) {
        case SEEN:
            learn (pace, nvs_now_ns () - since, lane->woken ? 1 : 0);
            pace->penalty = 0;
            return 1;
        case NOT_YET:
            lane->waits.futile++;
            pace->penalty = pace->penalty == 0 ? 1 : pace->penalty < HOLD_MAX ? 2 * pace->penalty : HOLD_MAX;
            pace->hold = pace->penalty;
            break;
        case HOPELESS: lane->waits.hopeless++; break;
        }
        now = nvs_now_ns ();
    }
    if (!nvs_lane_sleep (lane, until - now))
        return 0;
    learn (pace, nvs_now_ns () - since, lane->woken ? 2 : 1);
    return 1;
}

/* Copies a reply that has been seen to be there. */
static int
take (struct nvs_caller_lane *lane, void *reply, size_t capacity, uint32_t *length)
{
    uint32_t size;

    /* Read once; the bytes are copied before anyone looks at them. */
    size = atomic_load_explicit (&lane->shared->reply_length, memory_order_relaxed);
    if (size > NVS_LANE_FRAME || size > capacity)
        return NVS_WAIT_BROKEN;
    memcpy (reply, nvs_lane_frame (lane), size);
    *length = size;
    return NVS_WAIT_DONE;
}

int
nvs_lane_wait (struct nvs_caller_lane *lane, int64_t wait_ns, void *reply, size_t capacity, uint32_t *length)
{
    int64_t start = nvs_now_ns ();

    if (!nvs_lane_spin (lane, least (wait_ns, SPIN_NS)) && !nvs_lane_sleep (lane, wait_ns - (nvs_now_ns () - start)))
        return NVS_WAIT_PENDING;
    return take (lane, reply, capacity, length);
}

static bool
is_over (const struct nvs_end *end)
{
    struct pollfd process = { .fd = end->pidfd, .events = POLLIN };

    return end->pidfd < 0 || __atomic_load_n (&end->stopping, __ATOMIC_RELAXED) != 0 || poll (&process, 1, 0) != 0;
}

int
nvs_lane_wait_on (struct nvs_caller_lane *lane, const struct nvs_end *end, int64_t wait_ns, void *reply,
                  size_t capacity, uint32_t *length)
{
    int64_t now = nvs_now_ns ();
    const int64_t until = now + wait_ns;

    /* Seen once, for a hostile worker may take it back. */
    while (!nvs_lane_sleep (lane, least (until - now, ALIVE_NS))) {
        const int64_t wake = least (now + ALIVE_NS, until);

        now = nvs_now_ns ();
        /* Or a signal has cut it short, or there may be nothing to wait for. */
        if (now >= until || now < wake || is_over (end))
            return NVS_WAIT_PENDING;
    }
    return take (lane, reply, capacity, length);
}

void
nvs_lane_waits (const struct nvs_caller_lane *lane, struct nvs_waits *waits)
{
    *waits = lane->waits;
}
