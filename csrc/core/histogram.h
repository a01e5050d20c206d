/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The slots of a latency histogram: fixed, so that histograms can be added up, and two of one session be compared. Each
 * power of two from 128 ns to 69 s is parted in four, so that a slot's bounds are at most a quarter apart; below is one
 * slot, and above another. A slot holds what is at most its bound, as a Prometheus bucket's `le` has it.
 */
#ifndef NVSANDBOX_CORE_HISTOGRAM_H
#define NVSANDBOX_CORE_HISTOGRAM_H

#include <stdint.h>

#define NVS_LATENCY_FIRST 7U  /* 2^7 ns is the first bound */
#define NVS_LATENCY_LAST  36U /* 2^36 ns the last */
#define NVS_LATENCY_PARTS 4U
#define NVS_LATENCY_SLOTS ((NVS_LATENCY_LAST - NVS_LATENCY_FIRST) * NVS_LATENCY_PARTS + 2U)

/* Which slot a call of so many nanoseconds belongs to. */
static inline uint32_t
nvs_latency_slot (uint64_t ns)
{
    const uint64_t below = ns == 0 ? 0 : ns - 1; /* a bound belongs to the slot that it ends */
    uint32_t power;

    if (below >> NVS_LATENCY_FIRST == 0)
        return 0;
    power = 63U - (uint32_t)__builtin_clzll (below);
    if (power >= NVS_LATENCY_LAST)
        return NVS_LATENCY_SLOTS - 1;
    return 1 + (power - NVS_LATENCY_FIRST) * NVS_LATENCY_PARTS
           + (uint32_t)(below >> (power - 2) & (NVS_LATENCY_PARTS - 1));
}

/* The largest number of nanoseconds that a slot holds; UINT64_MAX for the last one. */
static inline uint64_t
nvs_latency_bound (uint32_t slot)
{
    uint64_t power;

    if (slot == 0)
        return 1ULL << NVS_LATENCY_FIRST;
    if (slot >= NVS_LATENCY_SLOTS - 1)
        return UINT64_MAX;
    power = 1ULL << (NVS_LATENCY_FIRST + (slot - 1) / NVS_LATENCY_PARTS);
    return power + power / NVS_LATENCY_PARTS * ((slot - 1) % NVS_LATENCY_PARTS + 1);
}

#endif
