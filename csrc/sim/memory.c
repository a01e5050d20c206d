/* SPDX-License-Identifier: Apache-2.0 */
/* Frame buffer and BAR1. */
#include "sim.h"

/* What a context costs beside what its process allocates. */
#define OVERHEAD_MIB 4u

/* total = reserved + free + used, and used covers the processes. */
struct nvml_memory_v2
nvs_memory (const struct nvs_device *device)
{
    const struct nvs_profile *profile = device->gpu->profile;
    struct nvml_memory_v2 memory = { 0 };

    if (device->gi == NULL) {
        memory.total = profile->memory;
        memory.reserved = profile->reserved_mib * NVS_MIB;
    } else {
        memory.total = device->gi->profile->memory_mib * NVS_MIB;
        memory.reserved = 13 * NVS_MIB;
    }
    memory.used = OVERHEAD_MIB * NVS_MIB + nvs_process_memory (device);
    memory.free = memory.total - memory.reserved - memory.used;
    return memory;
}

API nvmlReturn_t
nvmlDeviceGetMemoryInfo (nvmlDevice_t device, struct nvml_memory *info)
{
    struct nvml_memory_v2 memory;

    BEGIN ();
    DEVICE (device);
    NEED (info);
    memory = nvs_memory (device);
    /* This older form knows no reserve, and counts it as used. */
    *info = (struct nvml_memory){ memory.total, memory.free, memory.used + memory.reserved };
    if (nvs_machine.options.na)
        *info = (struct nvml_memory){ NVS_NA64, NVS_NA64, NVS_NA64 };
    return NVML_SUCCESS;
}

API nvmlReturn_t
nvmlDeviceGetMemoryInfo_v2 (nvmlDevice_t device, struct nvml_memory_v2 *info)
{
    unsigned version = 0;

    BEGIN ();
    DEVICE (device);
    NEED_VERSION (info, 2);
    version = info->version;
    *info = nvs_memory (device);
    if (nvs_machine.options.na)
        *info = (struct nvml_memory_v2){ 0, NVS_NA64, NVS_NA64, NVS_NA64, NVS_NA64 };
    info->version = version;
    return NVML_SUCCESS;
}

API nvmlReturn_t
nvmlDeviceGetBAR1MemoryInfo (nvmlDevice_t device, struct nvml_bar1 *info)
{
    BEGIN ();
    DEVICE (device);
    NEED (info);
    info->total = device->gpu->profile->bar1_mib * NVS_MIB;
    if (device->gi != NULL)
        info->total = info->total / NVS_SLICES * device->gi->profile->memory_slices;
    info->used = 2 * NVS_MIB;
    info->free = info->total - info->used;
    return NVML_SUCCESS;
}

API nvmlReturn_t
nvmlDeviceGetMemoryBusWidth (nvmlDevice_t device, unsigned int *width)
{
    BEGIN ();
    GPU (device);
    NEED (width);
    *width = gpu->profile->bus_width;
    return NVML_SUCCESS;
}
