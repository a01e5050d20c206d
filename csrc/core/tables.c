/* SPDX-License-Identifier: Apache-2.0 */
/* What Python must know of the C side, told by the files that C itself is built from. */
#include "core.h"
#include "histogram.h"

static const struct nvs_core_profile profiles[] = {
#define X(key, product, memory_mib, major, minor, mig) { #key, product, memory_mib, mig },
#include "sim/profiles.def"
#undef X
};

static const struct nvs_core_option options[] = {
#define X(key, kind, initial, help) { #key, #kind, initial, help },
#include "sim/options.def"
#undef X
};

static const struct nvs_core_mig migs[] = {
#define M(gpu, name, index, id, slices, memory_slices, mib, sms, copies, decoders, jpeg, ofa, most, starts) \
    { #gpu, name, slices, memory_slices, most, starts },
#include "sim/mig_profiles.def"
#undef M
};

const char *
nvs_core_version (void)
{
    return NVSANDBOX_VERSION;
}

uint32_t
nvs_core_latency_slot (uint64_t ns)
{
    return nvs_latency_slot (ns);
}

uint64_t
nvs_core_latency_bound (uint32_t slot)
{
    return nvs_latency_bound (slot);
}

const char *
nvs_core_step_name (uint32_t step)
{
    return nvs_step_name (step < NVS_STEP_COUNT ? (enum nvs_step)step : NVS_STEP_COUNT);
}

const struct nvs_core_profile *
nvs_core_profile (uint32_t index)
{
    return index < sizeof profiles / sizeof profiles[0] ? &profiles[index] : NULL;
}

const struct nvs_core_option *
nvs_core_option (uint32_t index)
{
    return index < sizeof options / sizeof options[0] ? &options[index] : NULL;
}

const struct nvs_core_mig *
nvs_core_mig (uint32_t index)
{
    return index < sizeof migs / sizeof migs[0] ? &migs[index] : NULL;
}
