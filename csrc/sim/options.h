/* SPDX-License-Identifier: Apache-2.0 */
/* A description, parsed. */
#ifndef NVSANDBOX_SIM_OPTIONS_H
#define NVSANDBOX_SIM_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>

#define NVS_GPUS_MAX  64u
#define NVS_PROCS_MAX 5000u

/* A list of small numbers, such as 0+2+5. */
struct nvs_indexes {
    unsigned count;
    unsigned values[NVS_GPUS_MAX];
};

enum nvs_crash {
    NVS_CRASH_SEGV,
    NVS_CRASH_ABORT,
    NVS_CRASH_EXIT
};

struct nvs_function_crash {
    char function[96];
    enum nvs_crash how;
};

struct nvs_options {
    const struct nvs_profile *profile;
    unsigned count;
    bool has_procs; /* procs= was given: 0 is a number of processes too */
    bool has_xid;

    uint64_t seed, latency_us, init_ms, procs, leak_kib, xid;
    bool garbage, na, grow, insufficient, wait999, strict_handles, frozen;
    bool fields; /* mixed */
    struct nvs_indexes visible, minors, lost;
    char mig[256], driver[32], hang[96];
    struct nvs_function_crash crash;
};

#pragma GCC visibility push(hidden)
/* 0, or -1 with one line in `reason`. */
int nvs_options_parse (struct nvs_options *options, const char *description, char *reason, unsigned long reason_size);
#pragma GCC visibility pop

#endif
