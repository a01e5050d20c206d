/* SPDX-License-Identifier: Apache-2.0 */
/* What these GPUs have little of: encoder and capture sessions, licences, units, confidential computing. */
#include "sim.h"

API nvmlReturn_t
nvmlUnitGetCount (unsigned int *count)
{
    BEGIN ();
    NEED (count);
    *count = 0;
    return NVML_SUCCESS;
}

API nvmlReturn_t
nvmlDeviceGetEncoderCapacity (nvmlDevice_t device, unsigned int codec, unsigned int *percent)
{
    BEGIN ();
    GPU (device);
    NEED (percent);
    if (codec > 2)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (gpu->profile->encoders == 0 || (codec == 2 && gpu->profile->architecture < 8))
        return NVML_ERROR_NOT_SUPPORTED;
    *percent = 100;
    return NVML_SUCCESS;
}

API nvmlReturn_t
nvmlDeviceGetEncoderStats (nvmlDevice_t device, unsigned int *sessions, unsigned int *fps, unsigned int *latency_us)
{
    BEGIN ();
    GPU (device);
    NEED (sessions);
    NEED (fps);
    NEED (latency_us);
    *sessions = *fps = *latency_us = 0;
    return NVML_SUCCESS;
}

API nvmlReturn_t
nvmlDeviceGetEncoderSessions (nvmlDevice_t device, unsigned int *count, struct nvml_encoder_session *out)
{
    BEGIN ();
    GPU (device);
    return nvs_list (count, out, 0);
}

API nvmlReturn_t
nvmlDeviceGetFBCStats (nvmlDevice_t device, struct nvml_fbc_stats *stats)
{
    BEGIN ();
    GPU (device);
    NEED (stats);
    *stats = (struct nvml_fbc_stats){ 0 };
    return NVML_SUCCESS;
}

API nvmlReturn_t
nvmlDeviceGetFBCSessions (nvmlDevice_t device, unsigned int *count, void *out)
{
    BEGIN ();
    GPU (device);
    return nvs_list (count, out, 0);
}

/* Versions differ in the length of the list behind the count, which stays as it was. */
API nvmlReturn_t
nvmlDeviceGetGridLicensableFeatures_v4 (nvmlDevice_t device, struct nvml_licensable_features *features)
{
    BEGIN ();
    GPU (device);
    NEED (features);
    *features = (struct nvml_licensable_features){ 0 };
    return NVML_SUCCESS;
}
ALIAS (nvmlDeviceGetGridLicensableFeatures, nvmlDeviceGetGridLicensableFeatures_v4);
ALIAS (nvmlDeviceGetGridLicensableFeatures_v2, nvmlDeviceGetGridLicensableFeatures_v4);
ALIAS (nvmlDeviceGetGridLicensableFeatures_v3, nvmlDeviceGetGridLicensableFeatures_v4);

/* ---- how it is joined to the host --------------------------------------------------------------------- */

API nvmlReturn_t
nvmlDeviceGetC2cModeInfoV (nvmlDevice_t device, struct nvml_c2c *info)
{
    BEGIN ();
    GPU (device);
    NEED (info);
    info->enabled = gpu->profile->c2c;
    return NVML_SUCCESS;
}

API nvmlReturn_t
nvmlDeviceGetAddressingMode (nvmlDevice_t device, struct nvml_addressing_mode *mode)
{
    BEGIN ();
    GPU (device);
    NEED_VERSION (mode, 1);
    mode->value = gpu->profile->c2c ? 2 : 1; /* by the page tables of the CPU, or mirrored ones */
    return NVML_SUCCESS;
}

API nvmlReturn_t
nvmlDeviceGetCapabilities (nvmlDevice_t device, struct nvml_capabilities *capabilities)
{
    BEGIN ();
    GPU (device);
    NEED_VERSION (capabilities, 1);
    capabilities->mask = 0;
    return NVML_SUCCESS;
}

/* Racks only. Both versions have the same size. */
API nvmlReturn_t
nvmlDeviceGetPlatformInfo (nvmlDevice_t device, struct nvml_platform_info *info)
{
    BEGIN ();
    GPU (device);
    NEED (info);
    if (info->version != NVS_VERSIONED (*info, 1) && info->version != NVS_VERSIONED (*info, 2))
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    if (!gpu->profile->c2c)
        return NVML_ERROR_NOT_SUPPORTED;
    *info = (struct nvml_platform_info){ .version = info->version,
                                         .chassis = "1820124000001",
                                         .slot = 4,
                                         .tray = 2,
                                         .host = 1,
                                         .peer = 1, /* a switch */
                                         .module = (uint8_t)(gpu->slot + 1) };
    memcpy (info->ib_guid, gpu->uuid_bytes, sizeof info->ib_guid);
    return NVML_SUCCESS;
}

/* ---- confidential computing: off ---------------------------------------------------------------------- */

API nvmlReturn_t
nvmlSystemGetConfComputeCapabilities (struct nvml_cc_caps *caps)
{
    BEGIN ();
    NEED (caps);
    *caps = (struct nvml_cc_caps){ 0, nvs_machine.options.profile->architecture >= 9 };
    return NVML_SUCCESS;
}

API nvmlReturn_t
nvmlSystemGetConfComputeState (struct nvml_cc_state *state)
{
    BEGIN ();
    NEED (state);
    *state = (struct nvml_cc_state){ 0, 0, 0 };
    return NVML_SUCCESS;
}

API nvmlReturn_t
nvmlSystemGetConfComputeSettings (struct nvml_cc_settings *settings)
{
    BEGIN ();
    NEED_VERSION (settings, 1);
    *settings = (struct nvml_cc_settings){ .version = settings->version };
    return NVML_SUCCESS;
}

API nvmlReturn_t
nvmlSystemGetConfComputeGpusReadyState (unsigned int *accepting)
{
    BEGIN ();
    NEED (accepting);
    *accepting = 0;
    return NVML_SUCCESS;
}

API nvmlReturn_t
nvmlDeviceGetConfComputeMemSizeInfo (nvmlDevice_t device, struct nvml_cc_memory *info)
{
    BEGIN ();
    GPU (device);
    NEED (info);
    *info = (struct nvml_cc_memory){ 0, gpu->profile->memory / 1024 };
    return NVML_SUCCESS;
}

API nvmlReturn_t
nvmlDeviceGetConfComputeProtectedMemoryUsage (nvmlDevice_t device, struct nvml_memory *info)
{
    BEGIN ();
    DEVICE (device);
    NEED (info);
    *info = (struct nvml_memory){ 0, 0, 0 };
    return NVML_SUCCESS;
}
