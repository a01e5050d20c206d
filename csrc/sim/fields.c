/* SPDX-License-Identifier: Apache-2.0 */
/* Field values: many numbers in one call, each with a return code and a type of its own. And samples, which are
 * few numbers at many times. */
#include "sim.h"

static nvmlReturn_t
uint_value (struct nvml_field_value *out, unsigned value)
{
    out->type = VALUE_UINT;
    out->value.ui = value;
    return NVML_SUCCESS;
}

static nvmlReturn_t
ull_value (struct nvml_field_value *out, uint64_t value)
{
    out->type = VALUE_ULONGLONG;
    out->value.ull = value;
    return NVML_SUCCESS;
}

static nvmlReturn_t
int_value (struct nvml_field_value *out, unsigned above, unsigned below)
{
    out->type = VALUE_INT;
    out->value.si = (int32_t)above - (int32_t)below;
    return NVML_SUCCESS;
}

/* KiB over one link, or with the scope "all" over all of them, since the start. */
static uint64_t
link_kib (const struct nvs_gpu *gpu, unsigned scope)
{
    double full = gpu->profile->link_mbps * 1000.0 / 1.024 / 100 * 0.35;

    return (uint64_t)(nvs_load_sum (gpu) * full) * (scope == NVS_NO_ID ? gpu->profile->links : 1);
}

static nvmlReturn_t
link_field (const struct nvs_gpu *gpu, struct nvml_field_value *out)
{
    const struct nvs_profile *profile = gpu->profile;

    if (profile->links == 0)
        return NVML_ERROR_NOT_SUPPORTED;
    if (out->scope >= profile->links && out->scope != NVS_NO_ID)
        return NVML_ERROR_INVALID_ARGUMENT;
    switch (out->field) {
    case 138: /* data sent, data received, and the same with what the protocol adds */
    case 139: return ull_value (out, link_kib (gpu, out->scope));
    case 140:
    case 141: return ull_value (out, link_kib (gpu, out->scope) / 16 * 18);
    case 146: return uint_value (out, out->scope == NVS_NO_ID ? 0 : out->scope);
    case 164: return uint_value (out, profile->link_mbps);
    case 165: return uint_value (out, 1);
    case 166: return uint_value (out, profile->link_version);
    case 167: return uint_value (out, 0);
    case 201:
    case 203: return ull_value (out, link_kib (gpu, out->scope) * 4);
    case 202:
    case 204: return ull_value (out, link_kib (gpu, out->scope) * 1024);
    default: return ull_value (out, 0); /* errors of all kinds */
    }
}

static nvmlReturn_t
field (const struct nvs_gpu *gpu, struct nvml_field_value *out)
{
    const struct nvs_profile *profile = gpu->profile;
    unsigned id = out->field;

    if (id >= 3 && id <= 28) /* ECC error counts */
        return profile->ecc ? ull_value (out, 0) : NVML_ERROR_NOT_SUPPORTED;
    if ((id >= 29 && id <= 31) || id == 92 || id == 93) /* retired pages: before rows were remapped */
        return profile->architecture < 7 ? ull_value (out, 0) : NVML_ERROR_NOT_SUPPORTED;
    if ((id >= 32 && id <= 59) || (id >= 96 && id <= 119)) /* link errors, by link and in all */
        return profile->links != 0 ? ull_value (out, 0) : NVML_ERROR_NOT_SUPPORTED;
    if ((id >= 84 && id <= 90) || (id >= 132 && id <= 137))
        return profile->links != 0 ? uint_value (out, profile->link_mbps) : NVML_ERROR_NOT_SUPPORTED;
    if ((id >= 75 && id <= 81) || (id >= 269 && id <= 271)) /* time held down by other things than the power limit */
        return ull_value (out, 0);
    if ((id >= 138 && id <= 141) || (id >= 160 && id <= 167) || id == 146 || (id >= 201 && id <= 215))
        return link_field (gpu, out);
    if (id >= 173 && id <= 183) /* PCIe errors */
        return uint_value (out, 0);
    switch (id) {
    case 1:
    case 2: return uint_value (out, id == 1 ? profile->ecc : gpu->ecc_pending);
    case 74: return ull_value (out, (uint64_t)(nvs_seconds () * 1e9 / 250));
    case 82:
        return profile->temperature_memory != 0 ? uint_value (out, nvs_temperature_memory (gpu))
                                                : NVML_ERROR_NOT_SUPPORTED;
    case 83:
    case 191: return ull_value (out, (uint64_t)nvs_energy_mj (gpu));
    case 91: return profile->links != 0 ? uint_value (out, profile->links) : NVML_ERROR_NOT_SUPPORTED;
    case 94: return uint_value (out, gpu->slot % 3);
    case 95: return uint_value (out, 0);
    case 142:
    case 143:
    case 144:
    case 145: return profile->architecture >= 7 ? uint_value (out, 0) : NVML_ERROR_NOT_SUPPORTED;
    case 147: return profile->links != 0 ? uint_value (out, profile->links) : NVML_ERROR_NOT_SUPPORTED;
    case 170: return profile->c2c ? uint_value (out, 10) : NVML_ERROR_NOT_SUPPORTED;
    case 184: return profile->mig ? uint_value (out, profile->architecture >= 9) : NVML_ERROR_NOT_SUPPORTED;
    case 185:
    case 186: return out->scope == 0 ? uint_value (out, nvs_power_mw (gpu)) : NVML_ERROR_NOT_SUPPORTED;
    default: break;
    }
    /* Limits: of the GPU, and not of a module around it or its base power. */
    if (id >= 187 && id <= 192 && out->scope != 0)
        return NVML_ERROR_NOT_SUPPORTED;
    switch (id) {
    case 187: return uint_value (out, profile->power_min_mw);
    case 188:
    case 189: return uint_value (out, profile->power_default_mw);
    case 190:
    case 192: return uint_value (out, gpu->power_limit_mw);
    case 193: return int_value (out, profile->temperature_max, profile->temperature_shutdown);
    case 194: return int_value (out, profile->temperature_max, profile->temperature_slowdown);
    case 195: return int_value (out, 0, 0);
    case 196: return int_value (out, 0, 0);
    case 197: return ull_value (out, (uint64_t)(nvs_load_sum (gpu) * 9000.0 * 1000));
    case 198: return ull_value (out, (uint64_t)(nvs_load_sum (gpu) * 21000.0 * 1000));
    case 230: return uint_value (out, 0);
    default: return NVML_ERROR_NOT_SUPPORTED;
    }
}

/* fields=mixed: the id decides type and return code, and what the type does not cover of the union is rubbish. A
 * value that was read says 100 + its field's id, in signed types less than zero. */
static void
mixed (struct nvml_field_value *out)
{
    unsigned number = 100 + out->field;

    memset (&out->value, 0xa5, sizeof out->value);
    out->type = out->field % 7;
    if (out->field % 5 >= 3) {
        out->result = out->field % 5 == 3 ? NVML_ERROR_NOT_SUPPORTED : NVML_ERROR_UNKNOWN;
        return;
    }
    out->result = NVML_SUCCESS;
    switch (out->type) {
    case VALUE_DOUBLE: out->value.d = number + 0.5; break;
    case VALUE_UINT: out->value.ui = number; break;
    case VALUE_ULONG: out->value.ul = number; break;
    case VALUE_ULONGLONG: out->value.ull = number; break;
    case VALUE_SLONGLONG: out->value.sll = -(int64_t)number; break;
    case VALUE_INT: out->value.si = -(int32_t)number; break;
    default: out->value.us = (uint16_t)number; break;
    }
}

API nvmlReturn_t
nvmlDeviceGetFieldValues (nvmlDevice_t device, int count, struct nvml_field_value *values)
{
    BEGIN ();
    DEVICE (device);
    NEED (values);
    if (count <= 0)
        return NVML_ERROR_INVALID_ARGUMENT;
    for (int i = 0; i < count; i++) {
        struct nvml_field_value *out = &values[i];

        out->time = (int64_t)nvs_unix_us ();
        out->latency_us = 12;
        if (nvs_machine.options.fields) {
            mixed (out);
            continue;
        }
        out->type = VALUE_UINT;
        out->result = (uint32_t)(device->gi != NULL ? NVML_ERROR_NOT_SUPPORTED : field (device->gpu, out));
    }
    return NVML_SUCCESS;
}

API nvmlReturn_t
nvmlDeviceClearFieldValues (nvmlDevice_t device, int count, struct nvml_field_value *values)
{
    BEGIN ();
    GPU (device);
    NEED (values);
    if (count <= 0)
        return NVML_ERROR_INVALID_ARGUMENT;
    NEED_ADMIN ();
    for (int i = 0; i < count; i++)
        values[i].result = NVML_ERROR_NOT_SUPPORTED;
    return NVML_SUCCESS;
}

/* ---- samples ------------------------------------------------------------------------------------------ */

#define SAMPLES       120u
#define SAMPLE_PERIOD 166667u /* microseconds */

static unsigned
sample (const struct nvs_gpu *gpu, unsigned type, double seconds)
{
    unsigned load = nvs_util_at (gpu, seconds);

    switch (type) {
    case 0:
    case 7: return nvs_power_at (gpu, seconds);
    case 1: return load;
    case 2: return load * 5 / 8;
    case 5: return nvs_clock (gpu, 1);
    case 6: return nvs_clock (gpu, 2);
    default: return 0; /* the media engines */
    }
}

/* The driver keeps a ring of the last readings. Without a buffer: how many that may be. */
API nvmlReturn_t
nvmlDeviceGetSamples (nvmlDevice_t device, unsigned int type, unsigned long long since, unsigned int *value_type,
                      unsigned int *count, struct nvml_sample *out)
{
    uint64_t now = 0, newest = 0;
    unsigned have = 0, room = 0;

    BEGIN ();
    GPU (device);
    NEED (value_type);
    NEED (count);
    if (type >= 10)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (gpu->mig || (type == 8 && gpu->profile->jpeg == 0) || (type == 9 && gpu->profile->ofa == 0))
        return NVML_ERROR_NOT_SUPPORTED;
    *value_type = VALUE_UINT;
    if (out == NULL) {
        *count = SAMPLES;
        return NVML_SUCCESS;
    }
    room = *count;
    now = nvs_unix_us ();
    newest = now / SAMPLE_PERIOD * SAMPLE_PERIOD;
    for (unsigned i = SAMPLES; i-- > 0 && have < room;) {
        uint64_t time = newest - (uint64_t)i * SAMPLE_PERIOD;

        if (time <= since)
            continue;
        out[have].time = time;
        memset (&out[have].value, 0, sizeof out[have].value);
        out[have++].value.ui = sample (gpu, type, nvs_seconds () - (double)(now - time) / 1e6);
    }
    *count = have;
    return have != 0 ? NVML_SUCCESS : NVML_ERROR_NOT_FOUND;
}

API nvmlReturn_t
nvmlDeviceGetViolationStatus (nvmlDevice_t device, unsigned int policy, struct nvml_violation *status)
{
    double seconds = 0;

    BEGIN ();
    GPU (device);
    NEED (status);
    if (policy > 11 || (policy > 5 && policy < 10))
        return NVML_ERROR_INVALID_ARGUMENT;
    seconds = nvs_seconds ();
    *status = (struct nvml_violation){ (uint64_t)(seconds * 1e6) * 1000, 0 };
    if (policy == 0)
        status->violation_ns = status->reference_ns / 250;
    return NVML_SUCCESS;
}
