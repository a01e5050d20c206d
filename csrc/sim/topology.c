/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where GPUs are among CPUs and each other: a server of two sockets with 64 CPUs each, half of the GPUs on either,
 * two behind each PCIe switch. It is the simulated server, not the machine on which this runs.
 */
#include "sim.h"

#define SOCKET_CPUS 64u
#define LONG_BITS   (8u * (unsigned)sizeof (unsigned long))

static unsigned
socket_of (const struct nvs_gpu *gpu)
{
    return nvs_machine.options.count > 1 && gpu->slot >= (nvs_machine.options.count + 1) / 2;
}

static unsigned
level (const struct nvs_gpu *a, const struct nvs_gpu *b)
{
    if (a == b)
        return 0; /* the same board */
    if (socket_of (a) != socket_of (b))
        return 50; /* across sockets */
    return a->slot / 2 == b->slot / 2 ? 20 /* several switches */ : 40 /* the same socket */;
}

static void
cpu_mask (const struct nvs_gpu *gpu, unsigned longs, unsigned long *mask)
{
    unsigned first = socket_of (gpu) * SOCKET_CPUS;

    memset (mask, 0, longs * sizeof *mask);
    for (unsigned cpu = first; cpu < first + SOCKET_CPUS && cpu / LONG_BITS < longs; cpu++)
        mask[cpu / LONG_BITS] |= 1ul << cpu % LONG_BITS;
}

API nvmlReturn_t
nvmlDeviceGetCpuAffinity (nvmlDevice_t device, unsigned int longs, unsigned long *mask)
{
    BEGIN ();
    GPU (device);
    NEED (mask);
    if (longs == 0)
        return NVML_ERROR_INVALID_ARGUMENT;
    cpu_mask (gpu, longs, mask);
    return NVML_SUCCESS;
}

API nvmlReturn_t
nvmlDeviceGetCpuAffinityWithinScope (nvmlDevice_t device, unsigned int longs, unsigned long *mask, unsigned int scope)
{
    BEGIN ();
    GPU (device);
    NEED (mask);
    if (longs == 0 || scope > 1)
        return NVML_ERROR_INVALID_ARGUMENT;
    cpu_mask (gpu, longs, mask);
    return NVML_SUCCESS;
}

API nvmlReturn_t
nvmlDeviceGetMemoryAffinity (nvmlDevice_t device, unsigned int longs, unsigned long *mask, unsigned int scope)
{
    BEGIN ();
    GPU (device);
    NEED (mask);
    if (longs == 0 || scope > 1)
        return NVML_ERROR_INVALID_ARGUMENT;
    memset (mask, 0, longs * sizeof *mask);
    mask[0] = 1ul << socket_of (gpu);
    return NVML_SUCCESS;
}

/* The calling thread would be moved to CPUs that need not exist here. */
API nvmlReturn_t
nvmlDeviceSetCpuAffinity (nvmlDevice_t device)
{
    BEGIN ();
    GPU (device);
    return NVML_SUCCESS;
}

API nvmlReturn_t
nvmlDeviceClearCpuAffinity (nvmlDevice_t device)
{
    BEGIN ();
    GPU (device);
    return NVML_SUCCESS;
}

/* Only where the GPU's memory is a node of the system's own. */
API nvmlReturn_t
nvmlDeviceGetNumaNodeId (nvmlDevice_t device, unsigned int *node)
{
    BEGIN ();
    GPU (device);
    NEED (node);
    if (!gpu->profile->c2c)
        return NVML_ERROR_NOT_SUPPORTED;
    *node = 2 + 8 * gpu->slot;
    return NVML_SUCCESS;
}

API nvmlReturn_t
nvmlDeviceGetTopologyCommonAncestor (nvmlDevice_t device1, nvmlDevice_t device2, unsigned int *out)
{
    BEGIN ();
    DEVICE (device1);
    DEVICE (device2);
    NEED (out);
    *out = level (device1->gpu, device2->gpu);
    return NVML_SUCCESS;
}

/* The two below say SUCCESS and the count where others say INSUFFICIENT_SIZE. */
static nvmlReturn_t
give (unsigned *count, nvmlDevice_t *out, const nvmlDevice_t *found, unsigned have)
{
    unsigned room = *count;

    *count = have;
    if (out == NULL)
        return NVML_SUCCESS;
    if (room < have)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    for (unsigned i = 0; i < have; i++)
        out[i] = found[i];
    return NVML_SUCCESS;
}

API nvmlReturn_t
nvmlDeviceGetTopologyNearestGpus (nvmlDevice_t device, unsigned int wanted, unsigned int *count, nvmlDevice_t *out)
{
    nvmlDevice_t found[NVS_GPUS_MAX];
    unsigned have = 0;

    BEGIN ();
    GPU (device);
    NEED (count);
    if (wanted > 50 || wanted % 10 != 0)
        return NVML_ERROR_INVALID_ARGUMENT;
    for (unsigned i = 0; i < nvs_machine.count; i++)
        if (&nvs_machine.gpus[i] != gpu && level (gpu, &nvs_machine.gpus[i]) == wanted)
            found[have++] = nvs_machine.gpus[i].device;
    return give (count, out, found, have);
}

API nvmlReturn_t
nvmlSystemGetTopologyGpuSet (unsigned int cpu, unsigned int *count, nvmlDevice_t *out)
{
    nvmlDevice_t found[NVS_GPUS_MAX];
    unsigned have = 0;

    BEGIN ();
    NEED (count);
    for (unsigned i = 0; i < nvs_machine.count; i++)
        if (socket_of (&nvs_machine.gpus[i]) == cpu / SOCKET_CPUS)
            found[have++] = nvs_machine.gpus[i].device;
    return give (count, out, found, have);
}

/* Capability: 0 read, 1 write, 2 NVLink, 3 atomics, 4 over PCIe. Answer: 0 yes, 5 not supported. */
API nvmlReturn_t
nvmlDeviceGetP2PStatus (nvmlDevice_t device1, nvmlDevice_t device2, unsigned int capability, unsigned int *status)
{
    struct nvs_gpu *other = NULL;
    bool linked = false;

    BEGIN ();
    GPU (device1);
    TRY (nvs_gpu_of (device2, &other));
    NEED (status);
    if (capability > 4 || gpu == other)
        return NVML_ERROR_INVALID_ARGUMENT;
    linked = gpu->profile->links != 0;
    switch (capability) {
    case 2:
    case 3: *status = linked ? 0 : 5; break;
    case 4: *status = linked ? 5 : 0; break;
    default: *status = 0; break;
    }
    return NVML_SUCCESS;
}
