/* SPDX-License-Identifier: Apache-2.0 */
/* Memory errors, and how broken memory is taken out of use: pages until Turing, rows from Ampere on. Some GPUs
 * have corrected an error or two; none has had an uncorrectable one. */
#include "sim.h"

API nvmlReturn_t
nvmlDeviceGetEccMode (nvmlDevice_t device, unsigned int *current, unsigned int *pending)
{
    BEGIN ();
    GPU (device);
    NEED (current);
    NEED (pending);
    *current = gpu->profile->ecc;
    *pending = gpu->ecc_pending;
    return NVML_SUCCESS;
}

API nvmlReturn_t
nvmlDeviceGetDefaultEccMode (nvmlDevice_t device, unsigned int *mode)
{
    BEGIN ();
    GPU (device);
    NEED (mode);
    *mode = gpu->profile->ecc;
    return NVML_SUCCESS;
}

API nvmlReturn_t
nvmlDeviceSetEccMode (nvmlDevice_t device, unsigned int mode)
{
    BEGIN ();
    GPU (device);
    if (mode > 1)
        return NVML_ERROR_INVALID_ARGUMENT;
    NEED_ADMIN ();
    gpu->ecc_pending = mode; /* takes effect with the next reset, which does not come */
    return NVML_SUCCESS;
}

/* Kind: 0 corrected, 1 not. Counter: 0 since the driver was loaded, 1 ever. */
static uint64_t
errors (const struct nvs_gpu *gpu, unsigned kind, unsigned counter)
{
    return kind == 0 && counter == 1 && !gpu->ecc_cleared ? nvs_hash (nvs_machine.options.seed, 4000 + gpu->slot) % 3
                                                          : 0;
}

API nvmlReturn_t
nvmlDeviceGetTotalEccErrors (nvmlDevice_t device, unsigned int kind, unsigned int counter, unsigned long long *count)
{
    BEGIN ();
    GPU (device);
    NEED (count);
    if (kind > 1 || counter > 1)
        return NVML_ERROR_INVALID_ARGUMENT;
    *count = errors (gpu, kind, counter);
    return NVML_SUCCESS;
}

API nvmlReturn_t
nvmlDeviceGetDetailedEccErrors (nvmlDevice_t device, unsigned int kind, unsigned int counter,
                                struct nvml_ecc_counts *counts)
{
    BEGIN ();
    GPU (device);
    NEED (counts);
    if (kind > 1 || counter > 1)
        return NVML_ERROR_INVALID_ARGUMENT;
    *counts = (struct nvml_ecc_counts){ .memory = errors (gpu, kind, counter) };
    return NVML_SUCCESS;
}

API nvmlReturn_t
nvmlDeviceGetMemoryErrorCounter (nvmlDevice_t device, unsigned int kind, unsigned int counter, unsigned int location,
                                 unsigned long long *count)
{
    BEGIN ();
    GPU (device);
    NEED (count);
    if (kind > 1 || counter > 1 || location > 7)
        return NVML_ERROR_INVALID_ARGUMENT;
    /* DRAM and SRAM are what Ampere and later count; the units inside, what came before. */
    if (gpu->profile->architecture >= 7 ? location != 2 && location != 7 : location > 5)
        return NVML_ERROR_NOT_SUPPORTED;
    *count = location == 2 ? errors (gpu, kind, counter) : 0;
    return NVML_SUCCESS;
}

API nvmlReturn_t
nvmlDeviceClearEccErrorCounts (nvmlDevice_t device, unsigned int counter)
{
    BEGIN ();
    GPU (device);
    if (counter > 1)
        return NVML_ERROR_INVALID_ARGUMENT;
    NEED_ADMIN ();
    if (counter == 1)
        gpu->ecc_cleared = 1;
    return NVML_SUCCESS;
}

API nvmlReturn_t
nvmlDeviceGetSramEccErrorStatus (nvmlDevice_t device, struct nvml_sram_ecc *status)
{
    BEGIN ();
    GPU (device);
    NEED_VERSION (status, 1);
    if (gpu->profile->architecture < 7)
        return NVML_ERROR_NOT_SUPPORTED;
    *status = (struct nvml_sram_ecc){ .version = status->version };
    return NVML_SUCCESS;
}

/* ---- rows and pages ----------------------------------------------------------------------------------- */

API nvmlReturn_t
nvmlDeviceGetRemappedRows (nvmlDevice_t device, unsigned int *corrected, unsigned int *uncorrected,
                           unsigned int *pending, unsigned int *failure)
{
    BEGIN ();
    GPU (device);
    NEED (corrected);
    NEED (uncorrected);
    NEED (pending);
    NEED (failure);
    if (gpu->profile->architecture < 7)
        return NVML_ERROR_NOT_SUPPORTED;
    *corrected = *uncorrected = *pending = *failure = 0;
    return NVML_SUCCESS;
}

API nvmlReturn_t
nvmlDeviceGetRemappedRows_v2 (nvmlDevice_t device, struct nvml_remapped_v2 *info)
{
    BEGIN ();
    GPU (device);
    NEED (info);
    if (gpu->profile->architecture < 7)
        return NVML_ERROR_NOT_SUPPORTED;
    *info = (struct nvml_remapped_v2){ 0 };
    return NVML_SUCCESS;
}

API nvmlReturn_t
nvmlDeviceGetRowRemapperHistogram (nvmlDevice_t device, struct nvml_row_histogram *histogram)
{
    BEGIN ();
    GPU (device);
    NEED (histogram);
    if (gpu->profile->architecture < 7)
        return NVML_ERROR_NOT_SUPPORTED;
    *histogram = (struct nvml_row_histogram){ .max = gpu->profile->bus_width / 8 };
    return NVML_SUCCESS;
}

static nvmlReturn_t
retired_pages (nvmlDevice_t device, unsigned cause, unsigned *count, const void *out)
{
    GPU (device);
    if (cause > 1)
        return NVML_ERROR_INVALID_ARGUMENT;
    NEED (count);
    if (gpu->profile->architecture >= 7)
        return NVML_ERROR_NOT_SUPPORTED;
    return nvs_list (count, out, 0);
}

API nvmlReturn_t
nvmlDeviceGetRetiredPages (nvmlDevice_t device, unsigned int cause, unsigned int *count, unsigned long long *addresses)
{
    BEGIN ();
    return retired_pages (device, cause, count, addresses);
}

API nvmlReturn_t
nvmlDeviceGetRetiredPages_v2 (nvmlDevice_t device, unsigned int cause, unsigned int *count,
                              unsigned long long *addresses, unsigned long long *times)
{
    BEGIN ();
    (void)times;
    return retired_pages (device, cause, count, addresses);
}

API nvmlReturn_t
nvmlDeviceGetRetiredPagesPendingStatus (nvmlDevice_t device, unsigned int *pending)
{
    BEGIN ();
    GPU (device);
    NEED (pending);
    if (gpu->profile->architecture >= 7)
        return NVML_ERROR_NOT_SUPPORTED;
    *pending = 0;
    return NVML_SUCCESS;
}

API nvmlReturn_t
nvmlDeviceGetRepairStatus (nvmlDevice_t device, struct nvml_repair_status *status)
{
    BEGIN ();
    GPU (device);
    NEED_VERSION (status, 1);
    if (gpu->profile->architecture < 9)
        return NVML_ERROR_NOT_SUPPORTED;
    status->channel_pending = status->tpc_pending = 0;
    return NVML_SUCCESS;
}
