/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The processes that use a GPU. They need not exist: by default each GPU (each MIG device) has one, with the pid of
 * the parent of the process that loaded this library, as if one job used them all; through nvsandbox that is the
 * caller, so that tools which look pids up find something. Further ones (procs=) and those of frozen=1 have pids
 * that are made up.
 */
#include "sim.h"

#include <unistd.h>

#define MADE_UP_PID 3000000u

static unsigned
mig_devices (struct nvs_gpu *gpu)
{
    unsigned n = 0;

    while (nvs_mig_device (gpu, n) != NULL)
        n++;
    return n;
}

unsigned
nvs_process_count (const struct nvs_device *device)
{
    const struct nvs_options *options = &nvs_machine.options;
    struct nvs_gpu *gpu = device->gpu;
    unsigned devices = gpu->mig ? mig_devices (gpu) : 1;
    unsigned all = options->has_procs ? (unsigned)options->procs : devices;
    unsigned i = 0;

    if (devices == 0)
        return 0;
    if (device->gi == NULL)
        return all;
    while (nvs_mig_device (gpu, i) != device->ci)
        i++;
    return all / devices + (i < all % devices);
}

/* What the processes of a GPU, or of one MIG device, have together. */
static uint64_t
budget (const struct nvs_device *device)
{
    struct nvs_gpu *gpu = device->gpu;
    uint64_t part = 30 + nvs_hash (nvs_machine.options.seed, 2000 + gpu->slot) % 50;
    uint64_t bytes = 0;

    if (nvs_process_count (device) == 0)
        return 0;
    if (device->gi != NULL) {
        unsigned sharing = 0;

        for (unsigned i = 0; i < NVS_SLICES; i++)
            sharing += device->gi->cis[i] != NULL;
        bytes = device->gi->profile->memory_mib * NVS_MIB * part / 100 / sharing;
    } else if (gpu->mig) {
        struct nvs_ci *ci = NULL;

        for (unsigned n = 0; (ci = nvs_mig_device (gpu, n)) != NULL; n++)
            bytes += budget (ci->device);
    } else {
        bytes = gpu->profile->memory * part / 100;
    }
    return bytes - bytes % (2 * NVS_MIB);
}

uint64_t
nvs_process_memory (const struct nvs_device *device)
{
    return budget (device);
}

struct nvs_process
nvs_process_get (const struct nvs_device *device, unsigned i, unsigned count)
{
    struct nvs_gpu *gpu = device->gpu;
    struct nvs_process process = { .gi = NVS_NO_ID, .ci = NVS_NO_ID };
    uint64_t bytes = 0, share = 0;

    if (gpu->mig && device->gi == NULL) {
        struct nvs_ci *ci = NULL;

        for (unsigned n = 0; (ci = nvs_mig_device (gpu, n)) != NULL; n++) {
            unsigned here = nvs_process_count (ci->device);

            if (i < here)
                return nvs_process_get (ci->device, i, here);
            i -= here;
        }
        /* A list that has grown (grow=1): processes without an instance. */
        process.pid = MADE_UP_PID + gpu->slot * NVS_PROCS_MAX + 4000 + i;
        return process;
    }
    bytes = budget (device);
    share = bytes / count;
    share -= share % 65536;
    process.memory = i == 0 ? bytes - share * (count - 1) : share;
    process.pid = MADE_UP_PID + gpu->slot * NVS_PROCS_MAX + i;
    if (device->gi != NULL) {
        process.gi = device->gi->id;
        process.ci = device->ci->id;
        process.pid += 100 * device->gi->id + 10 * device->ci->id;
    }
    if (i == 0 && !nvs_machine.options.frozen)
        process.pid = (unsigned)getppid ();
    process.sm = nvs_util_gpu (gpu) / count;
    process.mem = nvs_util_memory (gpu) / count;
    if (nvs_machine.options.na)
        process.memory = NVS_NA64;
    return process;
}

static nvmlReturn_t
list_v1 (nvmlDevice_t device, unsigned int *count, struct nvml_process_v1 *out, bool any)
{
    unsigned have = any ? nvs_grown (nvs_process_count (device)) : 0;

    TRY (nvs_list (count, out, have));
    for (unsigned i = 0; i < have; i++) {
        struct nvs_process process = nvs_process_get (device, i, have);

        out[i] = (struct nvml_process_v1){ process.pid, process.memory };
    }
    return NVML_SUCCESS;
}

static nvmlReturn_t
list_v3 (nvmlDevice_t device, unsigned int *count, struct nvml_process *out, bool any)
{
    unsigned have = any ? nvs_grown (nvs_process_count (device)) : 0;

    TRY (nvs_list (count, out, have));
    for (unsigned i = 0; i < have; i++) {
        struct nvs_process process = nvs_process_get (device, i, have);

        out[i] = (struct nvml_process){ process.pid, process.memory, process.gi, process.ci };
    }
    return NVML_SUCCESS;
}

/* All processes compute; nothing draws, and there is no MPS server. */
#define LISTS(kind, any)                                                                                 \
    API nvmlReturn_t nvmlDeviceGet##kind##RunningProcesses (nvmlDevice_t device, unsigned int *count,    \
                                                            struct nvml_process_v1 *out)                 \
    {                                                                                                    \
        BEGIN ();                                                                                        \
        DEVICE (device);                                                                                 \
        return list_v1 (device, count, out, any);                                                        \
    }                                                                                                    \
    API nvmlReturn_t nvmlDeviceGet##kind##RunningProcesses_v2 (nvmlDevice_t device, unsigned int *count, \
                                                               struct nvml_process *out)                 \
    {                                                                                                    \
        BEGIN ();                                                                                        \
        DEVICE (device);                                                                                 \
        return list_v3 (device, count, out, any);                                                        \
    }                                                                                                    \
    ALIAS (nvmlDeviceGet##kind##RunningProcesses_v3, nvmlDeviceGet##kind##RunningProcesses_v2)

LISTS (Compute, true);
LISTS (Graphics, false);
LISTS (MPSCompute, false);

API nvmlReturn_t
nvmlDeviceGetRunningProcessDetailList (nvmlDevice_t device, struct nvml_process_detail_list *list)
{
    unsigned have = 0;

    BEGIN ();
    DEVICE (device);
    NEED_VERSION (list, 1);
    if (list->mode > 3)
        return NVML_ERROR_INVALID_ARGUMENT;
    /* Mode: 0 compute, 1 graphics, 2 MPS, 3 all. */
    have = list->mode == 0 || list->mode == 3 ? nvs_grown (nvs_process_count (device)) : 0;
    TRY (nvs_list (&list->count, list->entries, have));
    for (unsigned i = 0; i < have; i++) {
        struct nvs_process process = nvs_process_get (device, i, have);

        list->entries[i] = (struct nvml_process_detail){ process.pid, process.memory, process.gi, process.ci,
                                                         nvs_machine.options.na ? NVS_NA64 : 0 };
    }
    return NVML_SUCCESS;
}

/* One sample for each process, taken at the last full second. */
API nvmlReturn_t
nvmlDeviceGetProcessUtilization (nvmlDevice_t device, struct nvml_process_sample *out, unsigned int *count,
                                 unsigned long long since)
{
    uint64_t taken = 0;
    unsigned have = 0;

    BEGIN ();
    GPU (device);
    NEED (count);
    if (gpu->mig)
        return NVML_ERROR_NOT_SUPPORTED;
    taken = nvs_unix_us () / 1000000 * 1000000;
    have = nvs_grown (nvs_process_count (device));
    if (have == 0 || since >= taken)
        return NVML_ERROR_NOT_FOUND;
    TRY (nvs_list (count, out, have));
    for (unsigned i = 0; i < have; i++) {
        struct nvs_process process = nvs_process_get (device, i, have);

        out[i] = (struct nvml_process_sample){ process.pid, taken, process.sm, process.mem, 0, 0 };
    }
    return NVML_SUCCESS;
}

API nvmlReturn_t
nvmlDeviceGetProcessesUtilizationInfo (nvmlDevice_t device, struct nvml_processes_util *info)
{
    uint64_t taken = 0;
    unsigned have = 0;

    BEGIN ();
    GPU (device);
    NEED_VERSION (info, 1);
    if (gpu->mig)
        return NVML_ERROR_NOT_SUPPORTED;
    taken = nvs_unix_us () / 1000000 * 1000000;
    have = nvs_grown (nvs_process_count (device));
    if (have == 0 || info->since >= taken)
        return NVML_ERROR_NOT_FOUND;
    TRY (nvs_list (&info->count, info->entries, have));
    for (unsigned i = 0; i < have; i++) {
        struct nvs_process process = nvs_process_get (device, i, have);

        info->entries[i] = (struct nvml_process_util){ taken, process.pid, process.sm, process.mem, 0, 0, 0, 0 };
    }
    return NVML_SUCCESS;
}

API nvmlReturn_t
nvmlDeviceGetAccountingMode (nvmlDevice_t device, unsigned int *mode)
{
    BEGIN ();
    GPU (device);
    NEED (mode);
    *mode = gpu->accounting;
    return NVML_SUCCESS;
}

API nvmlReturn_t
nvmlDeviceSetAccountingMode (nvmlDevice_t device, unsigned int mode)
{
    BEGIN ();
    GPU (device);
    if (mode > 1)
        return NVML_ERROR_INVALID_ARGUMENT;
    NEED_ADMIN ();
    gpu->accounting = mode;
    return NVML_SUCCESS;
}

API nvmlReturn_t
nvmlDeviceGetAccountingBufferSize (nvmlDevice_t device, unsigned int *size)
{
    BEGIN ();
    GPU (device);
    NEED (size);
    *size = 4000;
    return NVML_SUCCESS;
}

API nvmlReturn_t
nvmlDeviceClearAccountingPids (nvmlDevice_t device)
{
    BEGIN ();
    GPU (device);
    NEED_ADMIN ();
    return NVML_SUCCESS;
}

API nvmlReturn_t
nvmlDeviceGetAccountingPids (nvmlDevice_t device, unsigned int *count, unsigned int *pids)
{
    unsigned have = 0;

    BEGIN ();
    GPU (device);
    have = gpu->accounting ? nvs_process_count (device) : 0;
    TRY (nvs_list (count, pids, have));
    for (unsigned i = 0; i < have; i++)
        pids[i] = nvs_process_get (device, i, have).pid;
    return NVML_SUCCESS;
}

API nvmlReturn_t
nvmlDeviceGetAccountingStats (nvmlDevice_t device, unsigned int pid, struct nvml_accounting *stats)
{
    unsigned have = 0;

    BEGIN ();
    GPU (device);
    NEED (stats);
    if (!gpu->accounting)
        return NVML_ERROR_NOT_SUPPORTED;
    have = nvs_process_count (device);
    for (unsigned i = 0; i < have; i++) {
        struct nvs_process process = nvs_process_get (device, i, have);

        if (process.pid != pid)
            continue;
        *stats = (struct nvml_accounting){ .gpu = process.sm,
                                           .memory = process.mem,
                                           .max_memory = process.memory,
                                           .start = nvs_unix_us () - 60000000,
                                           .running = 1 };
        return NVML_SUCCESS;
    }
    return NVML_ERROR_NOT_FOUND;
}
