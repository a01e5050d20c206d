/* SPDX-License-Identifier: Apache-2.0 */
/* What lane.c (who may use a lane, and what lies in it) and wait.c (how its caller waits) share. */
#ifndef NVSANDBOX_CORE_LANE_H
#define NVSANDBOX_CORE_LANE_H

#include <stdbool.h>

#include "core.h"

#define NVS_LATE_NS \
    100000 /* what a first short sleep is allowed: Linux lets timers be 50 us late, waking takes the rest */

#define NVS_LANE_MAGIC 0x656e616c2d73766eull /* "nvs-lane" */

struct nvs_caller_lane {
    uint64_t magic; /* as long as it is one: its address crosses to the other extension as a number */
    struct nvs_lane *shared;
    uint32_t number; /* of the last request, our own copy: what `request` holds may have been written by the worker */
    int fd;
    _Atomic int busy;
    bool looks;      /* false with one CPU: the worker could not answer while we look */
    bool woken;      /* whether the last request had to wake the worker */
    int64_t late_ns; /* how much later than asked for a sleep ends, as seen lately */
    struct nvs_waits waits;
    const unsigned
        *forks; /* how many there have been up to here, by the extension that made it: each has its own count */
    unsigned forks_before; /* when it was made */
};

/* Whether its memory is there: not after its end, and not in a forked child. Whoever is in a lane when a signal handler forks
 * goes on in the child, and not each lane is on a list then from which it could be closed. */
static inline bool
nvs_lane_here (const struct nvs_caller_lane *lane)
{
    return lane->shared != NULL && *lane->forks == lane->forks_before;
}

void nvs_futex_wake (_Atomic uint32_t *word);

#endif
