/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How long a cache line takes from one CPU to another and back, without the kernel: what no call to another process can
 * be faster than. A virtual machine's CPUs move about on their host, so that this may be another within seconds: measured in
 * turn with the calls themselves, it tells its part in their time.
 */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <time.h>

struct exchange {
    _Alignas (128) _Atomic uint32_t there;
    _Alignas (128) _Atomic uint32_t back;
    _Alignas (128) _Atomic bool failed;
    uint32_t times;
    double ns; /* of one, on average */
};

static double
now_ns (void)
{
    struct timespec t;

    (void)clock_gettime (CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static bool
seen (struct exchange *e, _Atomic uint32_t *word, uint32_t n)
{
    while (atomic_load_explicit (word, memory_order_acquire) != n)
        if (atomic_load_explicit (&e->failed, memory_order_relaxed))
            return false;
    return true;
}

static void *
answer (void *argument)
{
    struct exchange *e = argument;

    for (uint32_t n = 1; n <= e->times && seen (e, &e->there, n); n++)
        atomic_store_explicit (&e->back, n, memory_order_release);
    return NULL;
}

static void *
ask (void *argument)
{
    struct exchange *e = argument;
    double start = 0;

    for (uint32_t n = 1; n <= e->times; n++) {
        atomic_store_explicit (&e->there, n, memory_order_release);
        if (!seen (e, &e->back, n))
            return NULL;
        if (n == 1) /* from now on both are there */
            start = now_ns ();
    }
    e->ns = (now_ns () - start) / (e->times - 1);
    return NULL;
}

static bool
begin (pthread_t *thread, int cpu, void *(*function) (void *), struct exchange *e)
{
    pthread_attr_t attributes;
    cpu_set_t set;
    bool begun;

    CPU_ZERO (&set);
    CPU_SET ((size_t)cpu, &set);
    if (pthread_attr_init (&attributes) != 0)
        return false;
    begun = pthread_attr_setaffinity_np (&attributes, sizeof set, &set) == 0
            && pthread_create (thread, &attributes, function, e) == 0;
    (void)pthread_attr_destroy (&attributes);
    return begun;
}

double
exchange_ns (int first, int second, uint32_t times);

/* Nanoseconds of one exchange between these two CPUs, on average of so many; negative if there is no telling. */
double
exchange_ns (int first, int second, uint32_t times)
{
    struct exchange e = { .times = times, .ns = -1 };
    pthread_t asking;
    pthread_t answering;

    if (times < 2 || !begin (&answering, second, answer, &e))
        return -1;
    if (begin (&asking, first, ask, &e))
        (void)pthread_join (asking, NULL);
    else
        atomic_store (&e.failed, true);
    (void)pthread_join (answering, NULL);
    return e.ns;
}
