/* SPDX-License-Identifier: Apache-2.0 */
/* Which devices there are, and what identifies them. */
#include "sim.h"

#include <stdlib.h>

API nvmlReturn_t
nvmlDeviceGetCount_v2 (unsigned int *count)
{
    BEGIN ();
    NEED (count);
    *count = nvs_machine.count;
    return NVML_SUCCESS;
}
ALIAS (nvmlDeviceGetCount, nvmlDeviceGetCount_v2);

static nvmlReturn_t
give (struct nvs_gpu *gpu, nvmlDevice_t *device)
{
    if (gpu->lost)
        return NVML_ERROR_GPU_IS_LOST;
    *device = gpu->device;
    return NVML_SUCCESS;
}

API nvmlReturn_t
nvmlDeviceGetHandleByIndex_v2 (unsigned int index, nvmlDevice_t *device)
{
    BEGIN ();
    NEED (device);
    if (index >= nvs_machine.count)
        return NVML_ERROR_INVALID_ARGUMENT;
    return give (&nvs_machine.gpus[index], device);
}
ALIAS (nvmlDeviceGetHandleByIndex, nvmlDeviceGetHandleByIndex_v2);

API nvmlReturn_t
nvmlDeviceGetHandleBySerial (const char *serial, nvmlDevice_t *device)
{
    BEGIN ();
    NEED (serial);
    NEED (device);
    for (unsigned i = 0; i < nvs_machine.count; i++)
        if (strcmp (nvs_machine.gpus[i].serial, serial) == 0)
            return give (&nvs_machine.gpus[i], device);
    return NVML_ERROR_NOT_FOUND;
}

static nvmlReturn_t
by_uuid (const char *uuid, nvmlDevice_t *device)
{
    for (unsigned i = 0; i < nvs_machine.count; i++) {
        struct nvs_gpu *gpu = &nvs_machine.gpus[i];
        struct nvs_ci *ci = NULL;

        if (strcmp (gpu->uuid, uuid) == 0)
            return give (gpu, device);
        for (unsigned n = 0; (ci = nvs_mig_device (gpu, n)) != NULL; n++)
            if (strcmp (ci->uuid, uuid) == 0) {
                if (gpu->lost)
                    return NVML_ERROR_GPU_IS_LOST;
                *device = ci->device;
                return NVML_SUCCESS;
            }
    }
    return strncmp (uuid, "GPU-", 4) == 0 || strncmp (uuid, "MIG-", 4) == 0 ? NVML_ERROR_NOT_FOUND
                                                                            : NVML_ERROR_INVALID_ARGUMENT;
}

API nvmlReturn_t
nvmlDeviceGetHandleByUUID (const char *uuid, nvmlDevice_t *device)
{
    BEGIN ();
    NEED (uuid);
    NEED (device);
    return by_uuid (uuid, device);
}

API nvmlReturn_t
nvmlDeviceGetHandleByUUIDV (const struct nvml_uuid *uuid, nvmlDevice_t *device)
{
    char text[sizeof uuid->value.text + 1] = "";

    BEGIN ();
    NEED_VERSION (uuid, 1);
    NEED (device);
    if (uuid->type == 1) {
        memcpy (text, uuid->value.text, sizeof uuid->value.text);
        return by_uuid (text, device);
    }
    if (uuid->type != 2)
        return NVML_ERROR_INVALID_ARGUMENT;
    for (unsigned i = 0; i < nvs_machine.count; i++)
        if (memcmp (nvs_machine.gpus[i].uuid_bytes, uuid->value.bytes, sizeof uuid->value.bytes) == 0)
            return give (&nvs_machine.gpus[i], device);
    return NVML_ERROR_NOT_FOUND;
}

/* [domain:]bus:device.function, in any width and case. */
API nvmlReturn_t
nvmlDeviceGetHandleByPciBusId_v2 (const char *bus_id, nvmlDevice_t *device)
{
    unsigned domain = 0, bus = 0, slot = 0;
    char rest = '\0';

    BEGIN ();
    NEED (bus_id);
    NEED (device);
    if (sscanf (bus_id, "%x:%x:%x.0%c", &domain, &bus, &slot, &rest) != 3) {
        domain = 0;
        if (sscanf (bus_id, "%x:%x.0%c", &bus, &slot, &rest) != 2)
            return NVML_ERROR_INVALID_ARGUMENT;
    }
    for (unsigned i = 0; i < nvs_machine.count; i++) {
        struct nvs_gpu *gpu = &nvs_machine.gpus[i];

        if (gpu->domain == domain && gpu->bus == bus && slot == 0)
            return give (gpu, device);
    }
    return NVML_ERROR_NOT_FOUND;
}
ALIAS (nvmlDeviceGetHandleByPciBusId, nvmlDeviceGetHandleByPciBusId_v2);

API nvmlReturn_t
nvmlDeviceGetName (nvmlDevice_t device, char *name, unsigned int length)
{
    char text[96];

    BEGIN ();
    DEVICE (device);
    NEED (name);
    if (nvs_machine.options.garbage) {
        /* Up to the last byte, without an end. */
        for (unsigned i = 0; i < length && i < 96; i++)
            name[i] = (char)(i % 3 == 0 ? 0xf8 : 0x80 + nvs_hash (device->gpu->slot, i) % 0x80);
        return NVML_SUCCESS;
    }
    if (device->gi == NULL)
        return nvs_text (name, length, device->gpu->profile->name);
    if (device->ci->slices == device->gi->profile->slices)
        (void)snprintf (text, sizeof text, "%s MIG %s", device->gpu->profile->name, device->gi->profile->name);
    else
        (void)snprintf (text, sizeof text, "%s MIG %uc.%s", device->gpu->profile->name, device->ci->slices,
                        device->gi->profile->name);
    return nvs_text (name, length, text);
}

API nvmlReturn_t
nvmlDeviceGetUUID (nvmlDevice_t device, char *uuid, unsigned int length)
{
    BEGIN ();
    DEVICE (device);
    return nvs_text (uuid, length, device->gi == NULL ? device->gpu->uuid : device->ci->uuid);
}

API nvmlReturn_t
nvmlDeviceGetSerial (nvmlDevice_t device, char *serial, unsigned int length)
{
    BEGIN ();
    GPU (device);
    return nvs_text (serial, length, gpu->serial);
}

API nvmlReturn_t
nvmlDeviceGetIndex (nvmlDevice_t device, unsigned int *index)
{
    struct nvs_ci *ci = NULL;

    BEGIN ();
    DEVICE (device);
    NEED (index);
    *index = device->gpu->index;
    for (unsigned n = 0; device->ci != NULL && (ci = nvs_mig_device (device->gpu, n)) != NULL; n++)
        if (ci == device->ci)
            *index = n;
    return NVML_SUCCESS;
}

API nvmlReturn_t
nvmlDeviceGetMinorNumber (nvmlDevice_t device, unsigned int *minor)
{
    BEGIN ();
    GPU (device);
    NEED (minor);
    *minor = gpu->minor;
    return NVML_SUCCESS;
}

API nvmlReturn_t
nvmlDeviceGetModuleId (nvmlDevice_t device, unsigned int *id)
{
    BEGIN ();
    GPU (device);
    NEED (id);
    *id = gpu->slot + 1;
    return NVML_SUCCESS;
}

API nvmlReturn_t
nvmlDeviceGetBoardId (nvmlDevice_t device, unsigned int *id)
{
    BEGIN ();
    GPU (device);
    NEED (id);
    *id = gpu->domain << 16 | gpu->bus << 8;
    return NVML_SUCCESS;
}

API nvmlReturn_t
nvmlDeviceGetMultiGpuBoard (nvmlDevice_t device, unsigned int *multi)
{
    BEGIN ();
    GPU (device);
    NEED (multi);
    *multi = 0;
    return NVML_SUCCESS;
}

API nvmlReturn_t
nvmlDeviceOnSameBoard (nvmlDevice_t device1, nvmlDevice_t device2, int *same)
{
    BEGIN ();
    DEVICE (device1);
    DEVICE (device2);
    NEED (same);
    *same = device1->gpu == device2->gpu;
    return NVML_SUCCESS;
}

API nvmlReturn_t
nvmlDeviceGetBrand (nvmlDevice_t device, unsigned int *brand)
{
    BEGIN ();
    DEVICE (device);
    NEED (brand);
    *brand = device->gpu->profile->brand;
    return NVML_SUCCESS;
}

API nvmlReturn_t
nvmlDeviceGetArchitecture (nvmlDevice_t device, unsigned int *architecture)
{
    BEGIN ();
    DEVICE (device);
    NEED (architecture);
    *architecture = device->gpu->profile->architecture;
    return NVML_SUCCESS;
}

API nvmlReturn_t
nvmlDeviceGetCudaComputeCapability (nvmlDevice_t device, int *major, int *minor)
{
    BEGIN ();
    DEVICE (device);
    NEED (major);
    NEED (minor);
    *major = (int)device->gpu->profile->major;
    *minor = (int)device->gpu->profile->minor;
    return NVML_SUCCESS;
}

API nvmlReturn_t
nvmlDeviceGetNumGpuCores (nvmlDevice_t device, unsigned int *cores)
{
    BEGIN ();
    GPU (device);
    NEED (cores);
    *cores = gpu->profile->cores;
    return NVML_SUCCESS;
}

API nvmlReturn_t
nvmlDeviceGetBoardPartNumber (nvmlDevice_t device, char *text, unsigned int length)
{
    BEGIN ();
    GPU (device);
    return nvs_text (text, length, gpu->part_number);
}

API nvmlReturn_t
nvmlDeviceGetVbiosVersion (nvmlDevice_t device, char *text, unsigned int length)
{
    BEGIN ();
    GPU (device);
    return nvs_text (text, length, gpu->profile->vbios);
}

API nvmlReturn_t
nvmlDeviceGetInforomImageVersion (nvmlDevice_t device, char *text, unsigned int length)
{
    BEGIN ();
    GPU (device);
    return nvs_text (text, length, gpu->profile->inforom);
}

API nvmlReturn_t
nvmlDeviceGetInforomVersion (nvmlDevice_t device, unsigned int object, char *text, unsigned int length)
{
    static const char *const versions[] = { "2.1", "7.16", "N/A", "N/A" };

    BEGIN ();
    GPU (device);
    NEED (text);
    if (object >= sizeof versions / sizeof *versions)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (object >= 2)
        return NVML_ERROR_NOT_SUPPORTED;
    return nvs_text (text, length, versions[object]);
}

API nvmlReturn_t
nvmlDeviceGetInforomConfigurationChecksum (nvmlDevice_t device, unsigned int *checksum)
{
    BEGIN ();
    GPU (device);
    NEED (checksum);
    *checksum = (unsigned)nvs_hash (gpu->profile->device_id, 7);
    return NVML_SUCCESS;
}

API nvmlReturn_t
nvmlDeviceValidateInforom (nvmlDevice_t device)
{
    BEGIN ();
    GPU (device);
    return NVML_SUCCESS;
}

API nvmlReturn_t
nvmlDeviceGetLastBBXFlushTime (nvmlDevice_t device, unsigned long long *timestamp, unsigned long *duration_us)
{
    BEGIN ();
    GPU (device);
    NEED (timestamp);
    NEED (duration_us);
    *timestamp = nvs_unix_us () - 3600ull * 1000000;
    *duration_us = 120000 + gpu->slot;
    return NVML_SUCCESS;
}

API nvmlReturn_t
nvmlDeviceGetGspFirmwareVersion (nvmlDevice_t device, char *version)
{
    BEGIN ();
    GPU (device);
    if (gpu->profile->architecture < 7)
        return NVML_ERROR_NOT_SUPPORTED;
    return nvs_text (version, 64, nvs_machine.options.driver);
}

API nvmlReturn_t
nvmlDeviceGetGspFirmwareMode (nvmlDevice_t device, unsigned int *enabled, unsigned int *standard)
{
    BEGIN ();
    GPU (device);
    NEED (enabled);
    NEED (standard);
    *enabled = *standard = gpu->profile->architecture >= 7;
    return NVML_SUCCESS;
}

API nvmlReturn_t
nvmlDeviceGetPdi (nvmlDevice_t device, struct nvml_pdi *pdi)
{
    BEGIN ();
    GPU (device);
    NEED_VERSION (pdi, 1);
    pdi->value = nvs_hash (nvs_machine.options.seed, 77 + gpu->slot);
    return NVML_SUCCESS;
}
