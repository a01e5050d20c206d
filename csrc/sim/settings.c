/* SPDX-License-Identifier: Apache-2.0 */
/* Modes that an administrator sets, and those that such GPUs have in one way only. */
#include "sim.h"

API nvmlReturn_t
nvmlDeviceGetPersistenceMode (nvmlDevice_t device, unsigned int *mode)
{
    BEGIN ();
    GPU (device);
    NEED (mode);
    *mode = gpu->persistence;
    return NVML_SUCCESS;
}

API nvmlReturn_t
nvmlDeviceSetPersistenceMode (nvmlDevice_t device, unsigned int mode)
{
    BEGIN ();
    GPU (device);
    if (mode > 1)
        return NVML_ERROR_INVALID_ARGUMENT;
    NEED_ADMIN ();
    gpu->persistence = mode;
    return NVML_SUCCESS;
}

API nvmlReturn_t
nvmlDeviceGetComputeMode (nvmlDevice_t device, unsigned int *mode)
{
    BEGIN ();
    DEVICE (device);
    NEED (mode);
    *mode = device->gpu->compute_mode;
    return NVML_SUCCESS;
}

API nvmlReturn_t
nvmlDeviceSetComputeMode (nvmlDevice_t device, unsigned int mode)
{
    BEGIN ();
    GPU (device);
    if (mode > 3)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (mode == 1) /* exclusive by thread is long gone */
        return NVML_ERROR_NOT_SUPPORTED;
    NEED_ADMIN ();
    gpu->compute_mode = mode;
    return NVML_SUCCESS;
}

API nvmlReturn_t
nvmlDeviceGetDisplayMode (nvmlDevice_t device, unsigned int *mode)
{
    BEGIN ();
    DEVICE (device);
    NEED (mode);
    *mode = 1; /* what NVML says of boards without outputs too */
    return NVML_SUCCESS;
}

API nvmlReturn_t
nvmlDeviceGetDisplayActive (nvmlDevice_t device, unsigned int *active)
{
    BEGIN ();
    DEVICE (device);
    NEED (active);
    *active = 0;
    return NVML_SUCCESS;
}

API nvmlReturn_t
nvmlDeviceGetVirtualizationMode (nvmlDevice_t device, unsigned int *mode)
{
    BEGIN ();
    GPU (device);
    NEED (mode);
    *mode = 0;
    return NVML_SUCCESS;
}

API nvmlReturn_t
nvmlDeviceGetAPIRestriction (nvmlDevice_t device, unsigned int api, unsigned int *restricted)
{
    BEGIN ();
    GPU (device);
    NEED (restricted);
    if (api > 1)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (api == 1)
        return NVML_ERROR_NOT_SUPPORTED;
    *restricted = 1;
    return NVML_SUCCESS;
}

API nvmlReturn_t
nvmlDeviceGetNumFans (nvmlDevice_t device, unsigned int *count)
{
    BEGIN ();
    GPU (device);
    NEED (count);
    *count = 0; /* all of them are cooled by their server */
    return NVML_SUCCESS;
}

API nvmlReturn_t
nvmlDeviceGetBridgeChipInfo (nvmlDevice_t device, struct nvml_bridge_chips *chips)
{
    BEGIN ();
    GPU (device);
    NEED (chips);
    return NVML_ERROR_NOT_SUPPORTED;
}
