/* SPDX-License-Identifier: Apache-2.0 */
/* Of both halves of a lane: what time it is, and how one who looks again and again spares its core's other threads. */
#ifndef NVSANDBOX_CLOCK_H
#define NVSANDBOX_CLOCK_H

#include <stdint.h>
#include <time.h>

/* CLOCK_MONOTONIC, the same in all processes of a machine. It cannot fail on Linux. */
static inline int64_t
nvs_now_ns (void)
{
    struct timespec t = { 0, 0 };

    (void)clock_gettime (CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static inline void
nvs_relax (void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause ();
#elif defined(__aarch64__)
    __asm__ volatile ("yield" ::: "memory");
#endif
}

#endif
