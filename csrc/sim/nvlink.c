/* SPDX-License-Identifier: Apache-2.0 */
/* NVLink and the fabric of NVSwitches behind it. Every link of every GPU goes to a switch. */
#include "sim.h"

#define LINK(device, link)               \
    GPU (device);                        \
    if (gpu->profile->links == 0)        \
        return NVML_ERROR_NOT_SUPPORTED; \
    if ((link) >= gpu->profile->links)   \
    return NVML_ERROR_INVALID_ARGUMENT

API nvmlReturn_t
nvmlDeviceGetNvLinkState (nvmlDevice_t device, unsigned int link, unsigned int *active)
{
    BEGIN ();
    LINK (device, link);
    NEED (active);
    *active = 1;
    return NVML_SUCCESS;
}

API nvmlReturn_t
nvmlDeviceGetNvLinkVersion (nvmlDevice_t device, unsigned int link, unsigned int *version)
{
    BEGIN ();
    LINK (device, link);
    NEED (version);
    *version = gpu->profile->link_version;
    return NVML_SUCCESS;
}

API nvmlReturn_t
nvmlDeviceGetNvLinkCapability (nvmlDevice_t device, unsigned int link, unsigned int capability, unsigned int *has)
{
    BEGIN ();
    LINK (device, link);
    NEED (has);
    if (capability > 5)
        return NVML_ERROR_INVALID_ARGUMENT;
    *has = capability != 4; /* all but the SLI bridge */
    return NVML_SUCCESS;
}

API nvmlReturn_t
nvmlDeviceGetNvLinkRemoteDeviceType (nvmlDevice_t device, unsigned int link, unsigned int *type)
{
    BEGIN ();
    LINK (device, link);
    NEED (type);
    *type = 2; /* a switch */
    return NVML_SUCCESS;
}

API nvmlReturn_t
nvmlDeviceGetNvLinkRemotePciInfo_v2 (nvmlDevice_t device, unsigned int link, struct nvml_pci *pci)
{
    unsigned bus = 0;

    BEGIN ();
    LINK (device, link);
    NEED (pci);
    bus = 0x05 + link % 4;
    *pci = (struct nvml_pci){ .bus = bus, .device_id = 0x22a310de, .subsystem_id = 0x179610de };
    (void)snprintf (pci->bus_id, sizeof pci->bus_id, "%08X:%02X:00.0", 0u, bus);
    (void)snprintf (pci->bus_id_short, sizeof pci->bus_id_short, "%04X:%02X:00.0", 0u, bus);
    return NVML_SUCCESS;
}
ALIAS (nvmlDeviceGetNvLinkRemotePciInfo, nvmlDeviceGetNvLinkRemotePciInfo_v2);

API nvmlReturn_t
nvmlDeviceGetNvLinkErrorCounter (nvmlDevice_t device, unsigned int link, unsigned int counter,
                                 unsigned long long *value)
{
    BEGIN ();
    LINK (device, link);
    NEED (value);
    if (counter > 4)
        return NVML_ERROR_INVALID_ARGUMENT;
    *value = 0;
    return NVML_SUCCESS;
}

API nvmlReturn_t
nvmlDeviceResetNvLinkErrorCounters (nvmlDevice_t device, unsigned int link)
{
    BEGIN ();
    LINK (device, link);
    NEED_ADMIN ();
    return NVML_SUCCESS;
}

/* Version 2 has the firmware of each link processor behind the flag: none is known. */
API nvmlReturn_t
nvmlDeviceGetNvLinkInfo (nvmlDevice_t device, struct nvml_link_info *info)
{
    struct nvml_link_info_v2 *newer = (void *)info;

    BEGIN ();
    GPU (device);
    NEED (info);
    if (info->version == NVS_VERSIONED (*newer, 2))
        newer->firmware.count = 0;
    else if (info->version != NVS_VERSIONED (*info, 1))
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    if (gpu->profile->links == 0)
        return NVML_ERROR_NOT_SUPPORTED;
    info->encrypted = 0;
    return NVML_SUCCESS;
}

/* ---- fabric ------------------------------------------------------------------------------------------- */

#define FABRIC_COMPLETED 3u
#define FABRIC_HEALTHY   1u
/* Four questions (bandwidth, recovery, route, time-out), each "no", then "no wrong configuration". */
#define FABRIC_HEALTH (2u | 2u << 2 | 2u << 4 | 2u << 6 | 1u << 8)

/* Only racks (GB200) have a cluster of their own; one server's fabric has the number zero. */
static void
cluster (const struct nvs_gpu *gpu, uint8_t out[16])
{
    char text[48];

    memset (out, 0, 16);
    if (gpu->profile->c2c)
        nvs_uuid_make (text, out, "", nvs_machine.options.seed, 5000);
}

API nvmlReturn_t
nvmlDeviceGetGpuFabricInfo (nvmlDevice_t device, struct nvml_fabric *info)
{
    BEGIN ();
    GPU (device);
    NEED (info);
    if (!gpu->profile->fabric)
        return NVML_ERROR_NOT_SUPPORTED;
    *info = (struct nvml_fabric){ .state = FABRIC_COMPLETED };
    cluster (gpu, info->cluster);
    return NVML_SUCCESS;
}

API nvmlReturn_t
nvmlDeviceGetGpuFabricInfoV (nvmlDevice_t device, struct nvml_fabric_v2 *info)
{
    struct nvml_fabric_v3 *newer = (void *)info;

    BEGIN ();
    GPU (device);
    NEED (info);
    if (info->version == NVS_VERSIONED (*newer, 3))
        newer->summary = FABRIC_HEALTHY;
    else if (info->version != NVS_VERSIONED (*info, 2))
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    if (!gpu->profile->fabric)
        return NVML_ERROR_NOT_SUPPORTED;
    /* What version 3 has more stands behind what both have. */
    info->status = info->clique = 0;
    info->state = FABRIC_COMPLETED;
    info->health = FABRIC_HEALTH;
    cluster (gpu, info->cluster);
    return NVML_SUCCESS;
}

API nvmlReturn_t
nvmlDeviceGetGpuFabricInfo_v4 (nvmlDevice_t device, struct nvml_fabric_v4 *info)
{
    BEGIN ();
    GPU (device);
    NEED (info);
    if (!gpu->profile->fabric)
        return NVML_ERROR_NOT_SUPPORTED;
    *info = (struct nvml_fabric_v4){
        .cliques_count = 1, .state = FABRIC_COMPLETED, .health = FABRIC_HEALTH, .summary = FABRIC_HEALTHY
    };
    cluster (gpu, info->cluster);
    return NVML_SUCCESS;
}
