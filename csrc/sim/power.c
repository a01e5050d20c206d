/* SPDX-License-Identifier: Apache-2.0 */
/* Power, energy, temperature, and how busy the engines are. */
#include "sim.h"

API nvmlReturn_t
nvmlDeviceGetPowerUsage (nvmlDevice_t device, unsigned int *milliwatts)
{
    BEGIN ();
    GPU (device);
    NEED (milliwatts);
    *milliwatts = nvs_power_mw (gpu);
    return NVML_SUCCESS;
}

API nvmlReturn_t
nvmlDeviceGetTotalEnergyConsumption (nvmlDevice_t device, unsigned long long *millijoules)
{
    BEGIN ();
    GPU (device);
    NEED (millijoules);
    *millijoules = (unsigned long long)nvs_energy_mj (gpu);
    return NVML_SUCCESS;
}

API nvmlReturn_t
nvmlDeviceGetPowerManagementMode (nvmlDevice_t device, unsigned int *mode)
{
    BEGIN ();
    GPU (device);
    NEED (mode);
    *mode = 1;
    return NVML_SUCCESS;
}

API nvmlReturn_t
nvmlDeviceGetPowerManagementLimit (nvmlDevice_t device, unsigned int *limit)
{
    BEGIN ();
    GPU (device);
    NEED (limit);
    *limit = gpu->power_limit_mw;
    return NVML_SUCCESS;
}
ALIAS (nvmlDeviceGetEnforcedPowerLimit, nvmlDeviceGetPowerManagementLimit);

API nvmlReturn_t
nvmlDeviceGetPowerManagementDefaultLimit (nvmlDevice_t device, unsigned int *limit)
{
    BEGIN ();
    GPU (device);
    NEED (limit);
    *limit = gpu->profile->power_default_mw;
    return NVML_SUCCESS;
}

API nvmlReturn_t
nvmlDeviceGetPowerManagementLimitConstraints (nvmlDevice_t device, unsigned int *least, unsigned int *most)
{
    BEGIN ();
    GPU (device);
    NEED (least);
    NEED (most);
    *least = gpu->profile->power_min_mw;
    *most = gpu->profile->power_default_mw;
    return NVML_SUCCESS;
}

static nvmlReturn_t
set_limit (struct nvs_gpu *gpu, unsigned milliwatts)
{
    if (milliwatts < gpu->profile->power_min_mw || milliwatts > gpu->profile->power_default_mw)
        return NVML_ERROR_INVALID_ARGUMENT;
    NEED_ADMIN ();
    nvs_set_power_limit (gpu, milliwatts);
    return NVML_SUCCESS;
}

API nvmlReturn_t
nvmlDeviceSetPowerManagementLimit (nvmlDevice_t device, unsigned int milliwatts)
{
    BEGIN ();
    GPU (device);
    return set_limit (gpu, milliwatts);
}

API nvmlReturn_t
nvmlDeviceSetPowerManagementLimit_v2 (nvmlDevice_t device, struct nvml_power_value *value)
{
    BEGIN ();
    GPU (device);
    NEED_VERSION (value, 2);
    return value->scope == 0 ? set_limit (gpu, value->milliwatts) : NVML_ERROR_NOT_SUPPORTED;
}

API nvmlReturn_t
nvmlDeviceGetPowerSource (nvmlDevice_t device, unsigned int *source)
{
    BEGIN ();
    GPU (device);
    NEED (source);
    *source = 0;
    return NVML_SUCCESS;
}

/* ---- temperature -------------------------------------------------------------------------------------- */

API nvmlReturn_t
nvmlDeviceGetTemperature (nvmlDevice_t device, unsigned int sensor, unsigned int *celsius)
{
    BEGIN ();
    GPU (device);
    NEED (celsius);
    if (sensor != 0)
        return NVML_ERROR_INVALID_ARGUMENT;
    *celsius = nvs_temperature (gpu);
    return NVML_SUCCESS;
}

API nvmlReturn_t
nvmlDeviceGetTemperatureV (nvmlDevice_t device, struct nvml_temperature_v1 *temperature)
{
    BEGIN ();
    GPU (device);
    NEED_VERSION (temperature, 1);
    if (temperature->sensor != 0)
        return NVML_ERROR_INVALID_ARGUMENT;
    temperature->value = (int32_t)nvs_temperature (gpu);
    return NVML_SUCCESS;
}

API nvmlReturn_t
nvmlDeviceGetTemperatureThreshold (nvmlDevice_t device, unsigned int which, unsigned int *celsius)
{
    BEGIN ();
    GPU (device);
    NEED (celsius);
    switch (which) {
    case 0: *celsius = gpu->profile->temperature_shutdown; break;
    case 1: *celsius = gpu->profile->temperature_slowdown; break;
    case 2: *celsius = gpu->profile->temperature_memory; break;
    case 3: *celsius = gpu->profile->temperature_max; break;
    default: return which < 8 ? NVML_ERROR_NOT_SUPPORTED : NVML_ERROR_INVALID_ARGUMENT;
    }
    return *celsius != 0 ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
}

API nvmlReturn_t
nvmlDeviceGetMarginTemperature (nvmlDevice_t device, struct nvml_margin_temperature *margin)
{
    BEGIN ();
    GPU (device);
    NEED_VERSION (margin, 1);
    margin->value = (int32_t)(gpu->profile->temperature_max - nvs_temperature (gpu));
    return NVML_SUCCESS;
}

API nvmlReturn_t
nvmlDeviceGetThermalSettings (nvmlDevice_t device, unsigned int index, struct nvml_thermal *settings)
{
    BEGIN ();
    GPU (device);
    NEED (settings);
    if (index != 0 && index != 15) /* the first, or all */
        return NVML_ERROR_INVALID_ARGUMENT;
    memset (settings, 0, sizeof *settings);
    settings->count = 1;
    settings->sensors[0] = (struct nvml_thermal_sensor){ 1, -40, 127, (int32_t)nvs_temperature (gpu), 1 };
    return NVML_SUCCESS;
}

/* ---- engines ------------------------------------------------------------------------------------------ */

/* With MIG the engines belong to the instances, and nothing counts for the whole. */
API nvmlReturn_t
nvmlDeviceGetUtilizationRates (nvmlDevice_t device, struct nvml_utilization *utilization)
{
    BEGIN ();
    GPU (device);
    NEED (utilization);
    if (gpu->mig)
        return NVML_ERROR_NOT_SUPPORTED;
    *utilization = (struct nvml_utilization){ nvs_util_gpu (gpu), nvs_util_memory (gpu) };
    if (nvs_machine.options.na)
        *utilization = (struct nvml_utilization){ NVS_NA32, NVS_NA32 };
    return NVML_SUCCESS;
}

/* Data-centre loads do not use the media engines; they are idle where they exist. */
#define ENGINE(name, field)                                                                        \
    API nvmlReturn_t nvmlDeviceGet##name##Utilization (nvmlDevice_t device, unsigned int *percent, \
                                                       unsigned int *period_us)                    \
    {                                                                                              \
        BEGIN ();                                                                                  \
        GPU (device);                                                                              \
        NEED (percent);                                                                            \
        NEED (period_us);                                                                          \
        if (gpu->mig || (field) == 0)                                                              \
            return NVML_ERROR_NOT_SUPPORTED;                                                       \
        *percent = nvs_machine.options.na ? NVS_NA32 : 0;                                          \
        *period_us = 167000;                                                                       \
        return NVML_SUCCESS;                                                                       \
    }

ENGINE (Encoder, 1 + gpu->profile->encoders) /* answered even where there is none */
ENGINE (Decoder, gpu->profile->decoders)
ENGINE (Jpg, gpu->profile->jpeg)
ENGINE (Ofa, gpu->profile->ofa)
