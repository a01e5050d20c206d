/* SPDX-License-Identifier: Apache-2.0 */
/* Initialisation, shutdown, and what is asked of the system as a whole. */
#include "sim.h"

#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

static nvmlReturn_t
initialise (void)
{
    __attribute__ ((cleanup (nvs_end))) struct nvs_call call;
    static char description[1024];
    struct nvs_options options;
    char reason[256] = "";
    const char *text = getenv ("NVSANDBOX_SIM");

    nvs_begin_init (&call);
    if (nvs_references != 0) {
        nvs_references++;
        return NVML_SUCCESS;
    }
    if (text == NULL || *text == '\0')
        text = "h100x1";
    if (strlen (text) >= sizeof description || nvs_options_parse (&options, text, reason, sizeof reason) != 0) {
        (void)fprintf (stderr, "nvsandbox simulator: NVSANDBOX_SIM: %s\n",
                       reason[0] != '\0' ? reason : "the description is too long");
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    if (nvs_machine_setup (&options, text) != 0) {
        (void)fprintf (stderr,
                       "nvsandbox simulator: NVSANDBOX_SIM: the MIG layout does not fit the GPU, or no memory\n");
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    /* In the order of the real library: a first initialisation is slow, then come the nodes. All entry points mean
     * the same here, so that hang=nvmlInit need not know which of them the caller uses. */
    if (options.init_ms != 0)
        nvs_sleep_us (options.init_ms * 1000);
    nvs_inject ("nvmlInit");
    nvs_nodes_make ();
    nvs_references = 1;
    return NVML_SUCCESS;
}

API nvmlReturn_t
nvmlInitWithFlags (unsigned int flags)
{
    (void)flags; /* NO_GPUS and NO_ATTACH ask for less work, and there is little here */
    return initialise ();
}

API nvmlReturn_t
nvmlInit_v2 (void)
{
    return initialise ();
}
ALIAS (nvmlInit, nvmlInit_v2);

API nvmlReturn_t
nvmlShutdown (void)
{
    BEGIN ();
    if (--nvs_references == 0)
        nvs_wake ();
    return NVML_SUCCESS;
}

/* The one function that works without initialisation, and does not return a code. */
API const char *
nvmlErrorString (nvmlReturn_t result)
{
    switch (result) {
    case 0: return "Success";
    case 1: return "Uninitialized";
    case 2: return "Invalid Argument";
    case 3: return "Not Supported";
    case 4: return "Insufficient Permissions";
    case 5: return "Already Initialized";
    case 6: return "Not Found";
    case 7: return "Insufficient Size";
    case 8: return "Insufficient External Power";
    case 9: return "Driver Not Loaded";
    case 10: return "Timeout";
    case 11: return "Interrupt Request Issue";
    case 12: return "NVML Shared Library Not Found";
    case 13: return "Function Not Found";
    case 14: return "Corrupted infoROM";
    case 15: return "GPU is lost";
    case 16: return "GPU requires reset";
    case 17: return "GPU access blocked by the operating system";
    case 18: return "Driver/library version mismatch";
    case 19: return "In use by another client";
    case 20: return "Insufficient Memory";
    case 21: return "No data";
    case 22: return "The requested vgpu operation is not available on target device, because ECC is enabled";
    case 23: return "Insufficient Resources";
    case 24: return "The requested clock frequency is not supported";
    case 25: return "Argument version mismatch";
    case 26: return "Deprecated";
    case 27: return "Not Ready";
    case 28: return "GPU not found";
    case 29: return "Invalid state";
    case 30: return "Reset type not supported";
    default: return "Unknown Error";
    }
}

API nvmlReturn_t
nvmlSystemGetDriverVersion (char *version, unsigned int length)
{
    BEGIN ();
    return nvs_text (version, length, nvs_machine.options.driver);
}

/* The newest CUDA that a driver branch runs, in NVML's notation: 13.0 is 13000. */
static int
cuda_version (void)
{
    unsigned long branch = strtoul (nvs_machine.options.driver, NULL, 10);

    if (branch >= 590)
        return 13010;
    if (branch >= 580)
        return 13000;
    if (branch >= 570)
        return 12080;
    if (branch >= 550)
        return 12040;
    if (branch >= 535)
        return 12020;
    if (branch >= 525)
        return 12000;
    return 11040;
}

/* NVML counts its own versions as CUDA does, and the driver's after that. */
API nvmlReturn_t
nvmlSystemGetNVMLVersion (char *version, unsigned int length)
{
    char text[48];

    BEGIN ();
    (void)snprintf (text, sizeof text, "%d.%s", cuda_version () / 1000, nvs_machine.options.driver);
    return nvs_text (version, length, text);
}

API nvmlReturn_t
nvmlSystemGetCudaDriverVersion (int *version)
{
    BEGIN ();
    NEED (version);
    *version = cuda_version ();
    return NVML_SUCCESS;
}
ALIAS (nvmlSystemGetCudaDriverVersion_v2, nvmlSystemGetCudaDriverVersion);

API nvmlReturn_t
nvmlSystemGetDriverBranch (struct nvml_branch_info *info, unsigned int length)
{
    char branch[16];

    BEGIN ();
    NEED_VERSION (info, 1);
    (void)snprintf (branch, sizeof branch, "r%lu_00", strtoul (nvs_machine.options.driver, NULL, 10));
    return nvs_text (info->branch, length < sizeof info->branch ? length : (unsigned)sizeof info->branch, branch);
}

API nvmlReturn_t
nvmlSystemGetProcessName (unsigned int pid, char *name, unsigned int length)
{
    char path[64], text[1024] = "";
    ssize_t got = -1;
    int fd = -1;

    BEGIN ();
    if (name == NULL || length == 0)
        return NVML_ERROR_INVALID_ARGUMENT;
    (void)snprintf (path, sizeof path, "/proc/%u/cmdline", pid);
    fd = open (path, O_RDONLY | O_CLOEXEC);
    if (fd >= 0) {
        got = read (fd, text, sizeof text - 1);
        (void)close (fd);
    }
    if (got <= 0)
        return NVML_ERROR_NOT_FOUND;
    text[got] = '\0';
    (void)snprintf (name, length, "%s", text); /* cut off where it does not fit, as the real library does */
    return NVML_SUCCESS;
}

API nvmlReturn_t
nvmlSystemGetHicVersion (unsigned int *count, void *entries)
{
    BEGIN ();
    return nvs_list (count, entries, 0);
}

API nvmlReturn_t
nvmlGetExcludedDeviceCount (unsigned int *count)
{
    BEGIN ();
    NEED (count);
    *count = 0;
    return NVML_SUCCESS;
}
ALIAS (nvmlGetBlacklistDeviceCount, nvmlGetExcludedDeviceCount);

API nvmlReturn_t
nvmlGetExcludedDeviceInfoByIndex (unsigned int index, struct nvml_excluded_device *info)
{
    BEGIN ();
    (void)index;
    NEED (info);
    return NVML_ERROR_INVALID_ARGUMENT;
}
ALIAS (nvmlGetBlacklistDeviceInfoByIndex, nvmlGetExcludedDeviceInfoByIndex);

/* A private door between NVIDIA's own libraries. */
API nvmlReturn_t
nvmlInternalGetExportTable (const void **table, const void *id)
{
    (void)table;
    (void)id;
    return NVML_ERROR_NOT_FOUND;
}
