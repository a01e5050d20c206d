/* SPDX-License-Identifier: Apache-2.0 */
/* What is fixed about a GPU model. */
#ifndef NVSANDBOX_SIM_PROFILE_H
#define NVSANDBOX_SIM_PROFILE_H

#include <stdint.h>

struct nvs_mig_profile {
    const char *key, *name;
    unsigned index, id, slices, memory_slices, memory_mib, sms, copy, decoders, jpeg, ofa, most, starts;
};

struct nvs_profile {
    const char *key, *name;
    uint64_t memory;
    unsigned major, minor, mig;
    /* From here on: profile.c. */
    unsigned architecture, brand, cores, sms, bus_width, ecc, fabric, c2c;
    unsigned device_id, subsystem_id, pcie_generation, pcie_width;
    unsigned power_default_mw, power_min_mw, power_idle_mw;
    unsigned clock_graphics, clock_memory, clock_video, clock_base, clock_memory_idle;
    unsigned temperature_shutdown, temperature_slowdown, temperature_memory, temperature_max;
    unsigned links, link_version, link_mbps;
    unsigned reserved_mib, bar1_mib, encoders, decoders, jpeg, ofa;
    const char *vbios, *inforom, *part_number;
};

#pragma GCC visibility push(hidden)
const struct nvs_profile *nvs_profile_find (const char *key); /* NULL: none of that name */
/* The n-th MIG profile of a GPU, NULL at the end. */
const struct nvs_mig_profile *nvs_mig_profile (const struct nvs_profile *profile, unsigned n);
#pragma GCC visibility pop

#endif
