/* SPDX-License-Identifier: Apache-2.0 */
/* GPU performance monitoring (Hopper and later): two samples of counters, and what happened between them. */
#include "sim.h"

#define METRICS_MAX 477u

/* What was counted up to a moment: percent-seconds of load. */
struct nvs_gpm_sample {
    const struct nvs_gpu *gpu; /* NULL: nothing taken yet */
    double seconds, load;
    unsigned share; /* of 7 compute slices */
};

static bool
supported (const struct nvs_gpu *gpu)
{
    return gpu->profile->architecture >= 9;
}

API nvmlReturn_t
nvmlGpmQueryDeviceSupport (nvmlDevice_t device, struct nvml_gpm_support *support)
{
    BEGIN ();
    GPU (device);
    NEED (support);
    if (support->version != 1)
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    support->supported = supported (gpu);
    return NVML_SUCCESS;
}

API nvmlReturn_t
nvmlGpmSampleAlloc (nvmlGpmSample_t *sample)
{
    BEGIN ();
    NEED (sample);
    *sample = nvs_handle_new (sizeof **sample, NVS_HANDLE_SAMPLE);
    return *sample != NULL ? NVML_SUCCESS : NVML_ERROR_MEMORY;
}

API nvmlReturn_t
nvmlGpmSampleFree (nvmlGpmSample_t sample)
{
    BEGIN ();
    if (!nvs_handle_known (sample, NVS_HANDLE_SAMPLE))
        return NVML_ERROR_INVALID_ARGUMENT;
    nvs_handle_free (sample);
    return NVML_SUCCESS;
}

static nvmlReturn_t
take (const struct nvs_gpu *gpu, nvmlGpmSample_t sample, unsigned share)
{
    if (!nvs_handle_known (sample, NVS_HANDLE_SAMPLE))
        return NVML_ERROR_INVALID_ARGUMENT;
    if (!supported (gpu))
        return NVML_ERROR_NOT_SUPPORTED;
    *sample = (struct nvs_gpm_sample){ gpu, nvs_seconds (), nvs_load_sum (gpu), share };
    return NVML_SUCCESS;
}

API nvmlReturn_t
nvmlGpmSampleGet (nvmlDevice_t device, nvmlGpmSample_t sample)
{
    BEGIN ();
    GPU (device);
    return take (gpu, sample, 7);
}

API nvmlReturn_t
nvmlGpmMigSampleGet (nvmlDevice_t device, unsigned int gi, nvmlGpmSample_t sample)
{
    BEGIN ();
    GPU (device);
    for (unsigned i = 0; i < NVS_SLICES && gpu->gis[i] != NULL; i++)
        if (gpu->gis[i]->id == gi)
            return take (gpu, sample, gpu->gis[i]->profile->slices);
    return NVML_ERROR_INVALID_ARGUMENT;
}

/* One percentage or rate for each metric: how much of it a full load makes. */
static const struct metric {
    unsigned id;
    double full;
    const char *short_name, *long_name, *unit;
} metrics[] = {
    { 1, 1.00, "GRACT", "Graphics Engine Activity", "%" },
    { 2, 0.95, "SMUTIL", "SM Activity", "%" },
    { 3, 0.45, "SMOCC", "SM Occupancy", "%" },
    { 4, 0.12, "INTUTIL", "Integer Activity", "%" },
    { 5, 0.55, "ANYTENSOR", "Any Tensor Activity", "%" },
    { 6, 0.00, "DFMATENSOR", "DFMA Tensor Activity", "%" },
    { 7, 0.54, "HMMATENSOR", "HMMA Tensor Activity", "%" },
    { 8, 0.00, "DMMATENSOR", "DMMA Tensor Activity", "%" },
    { 9, 0.01, "IMMATENSOR", "IMMA Tensor Activity", "%" },
    { 10, 0.62, "DRAMBW", "DRAM Bandwidth", "%" },
    { 11, 0.00, "FP64UTIL", "FP64 Activity", "%" },
    { 12, 0.18, "FP32UTIL", "FP32 Activity", "%" },
    { 13, 0.09, "FP16UTIL", "FP16 Activity", "%" },
    { 20, 9.0, "PCITX", "PCIe TX per Second", "MiB/s" },
    { 21, 20.5, "PCIRX", "PCIe RX per Second", "MiB/s" },
    { 60, 900.0, "NVLRX", "NVLink RX per Second", "MiB/s" },
    { 61, 880.0, "NVLTX", "NVLink TX per Second", "MiB/s" },
};

static void
fill (struct nvml_gpm_metric *out, double load)
{
    out->result = NVML_ERROR_NOT_SUPPORTED;
    for (size_t i = 0; i < sizeof metrics / sizeof *metrics; i++)
        if (metrics[i].id == out->id) {
            out->result = NVML_SUCCESS;
            out->value = load * metrics[i].full;
            out->info.short_name = metrics[i].short_name;
            out->info.long_name = metrics[i].long_name;
            out->info.unit = metrics[i].unit;
        }
}

API nvmlReturn_t
nvmlGpmMetricsGet (struct nvml_gpm_metrics *get)
{
    double elapsed = 0, load = 0;

    BEGIN ();
    NEED (get);
    if (get->version != 1)
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    if (!nvs_handle_known (get->first, NVS_HANDLE_SAMPLE) || !nvs_handle_known (get->second, NVS_HANDLE_SAMPLE)
        || get->count > METRICS_MAX || get->first->gpu == NULL || get->first->gpu != get->second->gpu)
        return NVML_ERROR_INVALID_ARGUMENT;
    elapsed = get->second->seconds - get->first->seconds;
    /* Both of the same moment (a clock that stands still): the load at it. */
    load = elapsed > 0 ? (get->second->load - get->first->load) / elapsed : nvs_util_gpu (get->first->gpu);
    load = load * get->second->share / 7;
    for (unsigned i = 0; i < get->count; i++)
        fill (&get->metrics[i], load);
    return NVML_SUCCESS;
}

API nvmlReturn_t
nvmlGpmQueryIfStreamingEnabled (nvmlDevice_t device, unsigned int *state)
{
    BEGIN ();
    GPU (device);
    NEED (state);
    if (!supported (gpu))
        return NVML_ERROR_NOT_SUPPORTED;
    *state = gpu->gpm_streaming;
    return NVML_SUCCESS;
}

API nvmlReturn_t
nvmlGpmSetStreamingEnabled (nvmlDevice_t device, unsigned int state)
{
    BEGIN ();
    GPU (device);
    if (!supported (gpu))
        return NVML_ERROR_NOT_SUPPORTED;
    if (state > 1)
        return NVML_ERROR_INVALID_ARGUMENT;
    NEED_ADMIN ();
    gpu->gpm_streaming = state;
    return NVML_SUCCESS;
}
