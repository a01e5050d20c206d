/* SPDX-License-Identifier: Apache-2.0 */
/* PCI: where a GPU sits and how it is connected. */
#include "sim.h"

API nvmlReturn_t
nvmlDeviceGetPciInfo_v3 (nvmlDevice_t device, struct nvml_pci *pci)
{
    const struct nvs_gpu *gpu = NULL;

    BEGIN ();
    DEVICE (device); /* a MIG device is where its GPU is */
    NEED (pci);
    gpu = device->gpu;
    *pci = (struct nvml_pci){ .domain = gpu->domain,
                              .bus = gpu->bus,
                              .device_id = gpu->profile->device_id,
                              .subsystem_id = gpu->profile->subsystem_id };
    memcpy (pci->bus_id_short, gpu->bus_id_short, sizeof pci->bus_id_short);
    memcpy (pci->bus_id, gpu->bus_id, sizeof pci->bus_id);
    return NVML_SUCCESS;
}

API nvmlReturn_t
nvmlDeviceGetPciInfo_v2 (nvmlDevice_t device, struct nvml_pci_v2 *pci)
{
    const struct nvs_gpu *gpu = NULL;

    BEGIN ();
    DEVICE (device);
    NEED (pci);
    gpu = device->gpu;
    *pci = (struct nvml_pci_v2){ .domain = gpu->domain,
                                 .bus = gpu->bus,
                                 .device_id = gpu->profile->device_id,
                                 .subsystem_id = gpu->profile->subsystem_id };
    memcpy (pci->bus_id, gpu->bus_id_short, sizeof pci->bus_id);
    return NVML_SUCCESS;
}
ALIAS (nvmlDeviceGetPciInfo, nvmlDeviceGetPciInfo_v2);

API nvmlReturn_t
nvmlDeviceGetPciInfoExt (nvmlDevice_t device, struct nvml_pci_ext_v1 *pci)
{
    BEGIN ();
    GPU (device);
    NEED_VERSION (pci, 1);
    /* Class 3, subclass 2: a 3D controller. */
    *pci = (struct nvml_pci_ext_v1){
        pci->version, gpu->domain, gpu->bus, 0, gpu->profile->device_id, gpu->profile->subsystem_id, 3, 2, ""
    };
    memcpy (pci->bus_id, gpu->bus_id, sizeof pci->bus_id);
    return NVML_SUCCESS;
}

static const unsigned link_mbps[] = { 0, 2500, 5000, 8000, 16000, 32000, 64000 };

/* An unsigned int that depends on the GPU alone. */
#define QUERY(function, expression)                                    \
    API nvmlReturn_t function (nvmlDevice_t device, unsigned int *out) \
    {                                                                  \
        BEGIN ();                                                      \
        GPU (device);                                                  \
        NEED (out);                                                    \
        *out = (expression);                                           \
        return NVML_SUCCESS;                                           \
    }

QUERY (nvmlDeviceGetMaxPcieLinkGeneration, gpu->profile->pcie_generation)
QUERY (nvmlDeviceGetGpuMaxPcieLinkGeneration, gpu->profile->pcie_generation)
QUERY (nvmlDeviceGetCurrPcieLinkGeneration, gpu->profile->pcie_generation)
QUERY (nvmlDeviceGetMaxPcieLinkWidth, gpu->profile->pcie_width)
QUERY (nvmlDeviceGetCurrPcieLinkWidth, gpu->profile->pcie_width)
QUERY (nvmlDeviceGetPcieSpeed, link_mbps[gpu->profile->pcie_generation])
QUERY (nvmlDeviceGetPcieLinkMaxSpeed, gpu->profile->pcie_generation)
QUERY (nvmlDeviceGetPcieReplayCounter, gpu->slot % 3)
QUERY (nvmlDeviceGetBusType, 2 + 0 * gpu->slot)
QUERY (nvmlDeviceGetIrqNum, 128 + gpu->slot)

/* KB/s: 0 sent, 1 received. */
API nvmlReturn_t
nvmlDeviceGetPcieThroughput (nvmlDevice_t device, unsigned int counter, unsigned int *value)
{
    BEGIN ();
    GPU (device);
    NEED (value);
    if (counter > 1)
        return NVML_ERROR_INVALID_ARGUMENT;
    *value = nvs_util_gpu (gpu) * (counter == 0 ? 9000u : 21000u);
    return NVML_SUCCESS;
}
