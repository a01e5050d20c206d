/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How long a cache line takes from one CPU to another and back, without the kernel: what no call to another process can
 * be faster than. Prints nanoseconds, the best of some rounds between the first two CPUs that it may run on. On a virtual machine
 * this changes by the minute, as the host moves the virtual CPUs: together with a benchmark's figures it tells their part.
 */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <time.h>

#define ROUNDS 40
#define TIMES  500

static _Alignas (128) _Atomic uint32_t there;
static _Alignas (128) _Atomic uint32_t back;

static void
run_on (size_t cpu)
{
    cpu_set_t set;

    CPU_ZERO (&set);
    CPU_SET (cpu, &set);
    (void)sched_setaffinity (0, sizeof set, &set);
}

static void *
answer (void *cpu)
{
    run_on (*(const size_t *)cpu);
    for (uint32_t n = 1; n <= ROUNDS * TIMES; n++) {
        while (atomic_load_explicit (&there, memory_order_acquire) != n)
            continue;
        atomic_store_explicit (&back, n, memory_order_release);
    }
    return NULL;
}

static int64_t
now_ns (void)
{
    struct timespec t;

    (void)clock_gettime (CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

int
main (void)
{
    size_t cpus[2] = { 0, 0 };
    int64_t best = INT64_MAX;
    int count = 0;
    cpu_set_t set;
    pthread_t thread;

    if (sched_getaffinity (0, sizeof set, &set) != 0)
        return 1;
    for (size_t cpu = 0; cpu < CPU_SETSIZE && count < 2; cpu++)
        if (CPU_ISSET (cpu, &set))
            cpus[count++] = cpu;
    if (count < 2)
        return 1;
    run_on (cpus[0]);
    if (pthread_create (&thread, NULL, answer, &cpus[1]) != 0)
        return 1;
    for (uint32_t round = 0; round < ROUNDS; round++) {
        int64_t start = now_ns ();

        for (uint32_t n = 1; n <= TIMES; n++) {
            atomic_store_explicit (&there, round * TIMES + n, memory_order_release);
            while (atomic_load_explicit (&back, memory_order_acquire) != round * TIMES + n)
                continue;
        }
        if (now_ns () - start < best)
            best = now_ns () - start;
    }
    (void)pthread_join (thread, NULL);
    (void)printf ("%lld\n", (long long)(best / TIMES));
    return 0;
}
