/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An NVML that does nothing: fixed answers at once, so that what is measured is the way to it. -DDELAY_NS=20000 makes
 * each call about a device take that long, busy, as a driver that waits for a register does. It opens nothing and makes
 * no node.
 */
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "../csrc/sim/nvml_abi.h"

#ifndef DELAY_NS
#define DELAY_NS 0
#endif
#define GPUS      64U
#define PROCESSES 100U
#define PUBLIC    __attribute__ ((visibility ("default")))

struct nvs_device {
    uint32_t index;
};
static struct nvs_device devices[GPUS];

static void
work (void)
{
    if (DELAY_NS != 0) {
        struct timespec now;
        int64_t end;

        (void)clock_gettime (CLOCK_MONOTONIC, &now);
        end = (int64_t)now.tv_sec * 1000000000 + now.tv_nsec + DELAY_NS;
        do
            (void)clock_gettime (CLOCK_MONOTONIC, &now);
        while ((int64_t)now.tv_sec * 1000000000 + now.tv_nsec < end);
    }
}

PUBLIC nvmlReturn_t nvmlInit_v2 (void);
PUBLIC nvmlReturn_t nvmlInitWithFlags (unsigned int flags);
PUBLIC nvmlReturn_t nvmlShutdown (void);
PUBLIC const char *nvmlErrorString (nvmlReturn_t result);
PUBLIC nvmlReturn_t nvmlDeviceGetCount_v2 (unsigned int *count);
PUBLIC nvmlReturn_t nvmlDeviceGetHandleByIndex_v2 (unsigned int index, nvmlDevice_t *device);
PUBLIC nvmlReturn_t nvmlDeviceGetTemperature (nvmlDevice_t device, int sensor, unsigned int *out);
PUBLIC nvmlReturn_t nvmlDeviceGetName (nvmlDevice_t device, char *name, unsigned int length);
PUBLIC nvmlReturn_t nvmlDeviceGetMemoryInfo_v2 (nvmlDevice_t device, struct nvml_memory_v2 *memory);
PUBLIC nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3 (nvmlDevice_t device, unsigned int *count,
                                                             struct nvml_process *list);
PUBLIC nvmlReturn_t nvmlDeviceGetFieldValues (nvmlDevice_t device, int count, struct nvml_field_value *values);

nvmlReturn_t
nvmlInit_v2 (void)
{
    for (uint32_t i = 0; i < GPUS; i++)
        devices[i].index = i;
    return NVML_SUCCESS;
}

nvmlReturn_t
nvmlInitWithFlags (unsigned int flags)
{
    (void)flags;
    return nvmlInit_v2 ();
}

nvmlReturn_t
nvmlShutdown (void)
{
    return NVML_SUCCESS;
}

const char *
nvmlErrorString (nvmlReturn_t result)
{
    return result == NVML_SUCCESS ? "Success" : "Error";
}

nvmlReturn_t
nvmlDeviceGetCount_v2 (unsigned int *count)
{
    *count = GPUS;
    return NVML_SUCCESS;
}

nvmlReturn_t
nvmlDeviceGetHandleByIndex_v2 (unsigned int index, nvmlDevice_t *device)
{
    if (index >= GPUS)
        return NVML_ERROR_INVALID_ARGUMENT;
    *device = &devices[index];
    return NVML_SUCCESS;
}

nvmlReturn_t
nvmlDeviceGetTemperature (nvmlDevice_t device, int sensor, unsigned int *out)
{
    (void)sensor;
    work ();
    *out = 40 + device->index;
    return NVML_SUCCESS;
}

nvmlReturn_t
nvmlDeviceGetName (nvmlDevice_t device, char *name, unsigned int length)
{
    static const char text[] = "A GPU that does nothing";

    (void)device;
    work ();
    if (length < sizeof text)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    memcpy (name, text, sizeof text);
    return NVML_SUCCESS;
}

nvmlReturn_t
nvmlDeviceGetMemoryInfo_v2 (nvmlDevice_t device, struct nvml_memory_v2 *memory)
{
    if (memory->version != NVS_VERSIONED (struct nvml_memory_v2, 2))
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    work ();
    memory->total = 1ULL << 36;
    memory->reserved = 1ULL << 28;
    memory->used = (1ULL << 30) + device->index;
    memory->free = memory->total - memory->used;
    return NVML_SUCCESS;
}

nvmlReturn_t
nvmlDeviceGetComputeRunningProcesses_v3 (nvmlDevice_t device, unsigned int *count, struct nvml_process *list)
{
    if (*count < PROCESSES) {
        *count = PROCESSES;
        return NVML_ERROR_INSUFFICIENT_SIZE;
    }
    work ();
    *count = PROCESSES;
    for (uint32_t i = 0; i < PROCESSES; i++)
        list[i] = (struct nvml_process){
            .pid = 1000 + i, .memory = (uint64_t)(device->index + 1) << 20, .gi = UINT32_MAX, .ci = UINT32_MAX
        };
    return NVML_SUCCESS;
}

nvmlReturn_t
nvmlDeviceGetFieldValues (nvmlDevice_t device, int count, struct nvml_field_value *values)
{
    work ();
    for (int i = 0; i < count; i++) {
        values[i].type = VALUE_ULONGLONG;
        values[i].result = NVML_SUCCESS;
        values[i].value.ull = (uint64_t)values[i].field * 1000 + device->index;
    }
    return NVML_SUCCESS;
}
