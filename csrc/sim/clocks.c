/* SPDX-License-Identifier: Apache-2.0 */
/* Clocks and performance states. Clock types: 0 graphics, 1 SM, 2 memory, 3 video. */
#include "sim.h"

#define CLOCK_TYPES 4u
#define STEP_MHZ    15u

API nvmlReturn_t
nvmlDeviceGetClockInfo (nvmlDevice_t device, unsigned int type, unsigned int *clock)
{
    BEGIN ();
    GPU (device);
    NEED (clock);
    if (type >= CLOCK_TYPES)
        return NVML_ERROR_INVALID_ARGUMENT;
    *clock = nvs_clock (gpu, type);
    return NVML_SUCCESS;
}

API nvmlReturn_t
nvmlDeviceGetMaxClockInfo (nvmlDevice_t device, unsigned int type, unsigned int *clock)
{
    BEGIN ();
    GPU (device);
    NEED (clock);
    if (type >= CLOCK_TYPES)
        return NVML_ERROR_INVALID_ARGUMENT;
    *clock = nvs_clock_max (gpu, type);
    return NVML_SUCCESS;
}

static nvmlReturn_t
application_clock (const struct nvs_gpu *gpu, unsigned type, bool standard, unsigned *clock)
{
    if (type >= CLOCK_TYPES)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (type == 3)
        return NVML_ERROR_NOT_SUPPORTED;
    if (standard)
        *clock = nvs_clock_max (gpu, type);
    else
        *clock = type == 2 ? gpu->app_clock_mem : gpu->app_clock_graphics;
    return NVML_SUCCESS;
}

API nvmlReturn_t
nvmlDeviceGetApplicationsClock (nvmlDevice_t device, unsigned int type, unsigned int *clock)
{
    BEGIN ();
    GPU (device);
    NEED (clock);
    return application_clock (gpu, type, false, clock);
}

API nvmlReturn_t
nvmlDeviceGetDefaultApplicationsClock (nvmlDevice_t device, unsigned int type, unsigned int *clock)
{
    BEGIN ();
    GPU (device);
    NEED (clock);
    return application_clock (gpu, type, true, clock);
}

API nvmlReturn_t
nvmlDeviceGetMaxCustomerBoostClock (nvmlDevice_t device, unsigned int type, unsigned int *clock)
{
    BEGIN ();
    GPU (device);
    NEED (clock);
    if (type >= CLOCK_TYPES)
        return NVML_ERROR_INVALID_ARGUMENT;
    *clock = nvs_clock_max (gpu, type);
    return NVML_SUCCESS;
}

/* Which of them: 0 current, 1 application target, 2 application default, 3 customer boost. */
API nvmlReturn_t
nvmlDeviceGetClock (nvmlDevice_t device, unsigned int type, unsigned int which, unsigned int *clock)
{
    BEGIN ();
    GPU (device);
    NEED (clock);
    if (type >= CLOCK_TYPES || which > 3)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (which == 1 || which == 2)
        return application_clock (gpu, type, which == 2, clock);
    *clock = which == 0 ? nvs_clock (gpu, type) : nvs_clock_max (gpu, type);
    return NVML_SUCCESS;
}

/* The idle clock is the other one, where there is another. Highest first. */
static unsigned
memory_clocks (const struct nvs_gpu *gpu, unsigned clocks[2])
{
    clocks[0] = gpu->profile->clock_memory;
    clocks[1] = gpu->profile->clock_memory_idle;
    return clocks[0] == clocks[1] ? 1 : 2;
}

API nvmlReturn_t
nvmlDeviceGetSupportedMemoryClocks (nvmlDevice_t device, unsigned int *count, unsigned int *out)
{
    unsigned clocks[2];
    unsigned have = 0;

    BEGIN ();
    GPU (device);
    have = memory_clocks (gpu, clocks);
    TRY (nvs_list (count, out, have));
    memcpy (out, clocks, have * sizeof *clocks);
    return NVML_SUCCESS;
}

API nvmlReturn_t
nvmlDeviceGetSupportedGraphicsClocks (nvmlDevice_t device, unsigned int memory_clock, unsigned int *count,
                                      unsigned int *out)
{
    unsigned clocks[2];
    unsigned have = 0;

    BEGIN ();
    GPU (device);
    NEED (count);
    have = memory_clocks (gpu, clocks);
    if (memory_clock != clocks[0] && (have == 1 || memory_clock != clocks[1]))
        return NVML_ERROR_NOT_FOUND;
    have = (gpu->profile->clock_graphics - 210) / STEP_MHZ + 1;
    TRY (nvs_list (count, out, have));
    for (unsigned i = 0; i < have; i++)
        out[i] = gpu->profile->clock_graphics - i * STEP_MHZ;
    return NVML_SUCCESS;
}

static bool
is_memory_clock (const struct nvs_gpu *gpu, unsigned clock)
{
    return clock == gpu->profile->clock_memory || clock == gpu->profile->clock_memory_idle;
}

API nvmlReturn_t
nvmlDeviceSetApplicationsClocks (nvmlDevice_t device, unsigned int memory, unsigned int graphics)
{
    BEGIN ();
    GPU (device);
    if (!is_memory_clock (gpu, memory) || graphics < 210 || graphics > gpu->profile->clock_graphics)
        return NVML_ERROR_INVALID_ARGUMENT;
    NEED_ADMIN ();
    gpu->app_clock_mem = memory;
    gpu->app_clock_graphics = graphics;
    return NVML_SUCCESS;
}

API nvmlReturn_t
nvmlDeviceResetApplicationsClocks (nvmlDevice_t device)
{
    BEGIN ();
    GPU (device);
    NEED_ADMIN ();
    gpu->app_clock_mem = gpu->profile->clock_memory;
    gpu->app_clock_graphics = gpu->profile->clock_graphics;
    return NVML_SUCCESS;
}

API nvmlReturn_t
nvmlDeviceSetGpuLockedClocks (nvmlDevice_t device, unsigned int least, unsigned int most)
{
    BEGIN ();
    GPU (device);
    if (least > most || most == 0)
        return NVML_ERROR_INVALID_ARGUMENT;
    NEED_ADMIN ();
    gpu->locked_min = least;
    gpu->locked_max = most < gpu->profile->clock_graphics ? most : gpu->profile->clock_graphics;
    if (gpu->locked_min > gpu->locked_max)
        gpu->locked_min = gpu->locked_max;
    return NVML_SUCCESS;
}

API nvmlReturn_t
nvmlDeviceResetGpuLockedClocks (nvmlDevice_t device)
{
    BEGIN ();
    GPU (device);
    NEED_ADMIN ();
    gpu->locked_min = gpu->locked_max = 0;
    return NVML_SUCCESS;
}

API nvmlReturn_t
nvmlDeviceSetMemoryLockedClocks (nvmlDevice_t device, unsigned int least, unsigned int most)
{
    BEGIN ();
    GPU (device);
    if (least > most)
        return NVML_ERROR_INVALID_ARGUMENT;
    NEED_ADMIN ();
    return NVML_SUCCESS;
}

API nvmlReturn_t
nvmlDeviceResetMemoryLockedClocks (nvmlDevice_t device)
{
    BEGIN ();
    GPU (device);
    NEED_ADMIN ();
    return NVML_SUCCESS;
}

API nvmlReturn_t
nvmlDeviceGetPerformanceState (nvmlDevice_t device, unsigned int *state)
{
    BEGIN ();
    GPU (device);
    NEED (state);
    /* Those whose memory clock falls when idle change their state with it. */
    *state = nvs_util_gpu (gpu) > 0 || gpu->profile->clock_memory_idle > 1000 ? 0 : 8;
    return NVML_SUCCESS;
}
ALIAS (nvmlDeviceGetPowerState, nvmlDeviceGetPerformanceState);

/* The size is in bytes; what is not used is "unknown". */
API nvmlReturn_t
nvmlDeviceGetSupportedPerformanceStates (nvmlDevice_t device, unsigned int *states, unsigned int size)
{
    unsigned room = size / (unsigned)sizeof *states;
    unsigned have = 0;

    BEGIN ();
    GPU (device);
    NEED (states);
    have = gpu->profile->clock_memory_idle < 1000 ? 2 : 1;
    if (room < have)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    for (unsigned i = 0; i < room && i < 16; i++)
        states[i] = 32;
    states[0] = 0;
    if (have == 2)
        states[1] = 8;
    return NVML_SUCCESS;
}

API nvmlReturn_t
nvmlDeviceGetMinMaxClockOfPState (nvmlDevice_t device, unsigned int type, unsigned int state, unsigned int *least,
                                  unsigned int *most)
{
    BEGIN ();
    GPU (device);
    NEED (least);
    NEED (most);
    if (type >= CLOCK_TYPES || state > 15)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (state != 0)
        return NVML_ERROR_NOT_SUPPORTED;
    *most = nvs_clock_max (gpu, type);
    *least = type == 2 ? *most : 210;
    return NVML_SUCCESS;
}

API nvmlReturn_t
nvmlDeviceGetDynamicPstatesInfo (nvmlDevice_t device, struct nvml_pstates_info *info)
{
    BEGIN ();
    GPU (device);
    NEED (info);
    memset (info, 0, sizeof *info);
    info->domains[0] = (struct nvml_pstate_util){ 1, nvs_util_gpu (gpu), 0, 0 };
    info->domains[1] = (struct nvml_pstate_util){ 1, nvs_util_memory (gpu), 0, 0 };
    info->domains[2] = (struct nvml_pstate_util){ 1, 0, 0, 0 };
    info->domains[3] = (struct nvml_pstate_util){ 1, nvs_util_gpu (gpu) / 8, 0, 0 };
    return NVML_SUCCESS;
}

API nvmlReturn_t
nvmlDeviceGetCurrentClocksEventReasons (nvmlDevice_t device, unsigned long long *reasons)
{
    BEGIN ();
    GPU (device);
    NEED (reasons);
    /* 1: idle. 4: the power limit holds the clock down. 2: the application clock does. */
    *reasons = nvs_util_gpu (gpu) == 0 ? 1 : 0;
    if (nvs_util_gpu (gpu) > 85)
        *reasons |= 4;
    if (gpu->app_clock_graphics < gpu->profile->clock_graphics)
        *reasons |= 2;
    return NVML_SUCCESS;
}
ALIAS (nvmlDeviceGetCurrentClocksThrottleReasons, nvmlDeviceGetCurrentClocksEventReasons);

API nvmlReturn_t
nvmlDeviceGetSupportedClocksEventReasons (nvmlDevice_t device, unsigned long long *reasons)
{
    BEGIN ();
    GPU (device);
    NEED (reasons);
    *reasons = 0x1ff;
    return NVML_SUCCESS;
}
ALIAS (nvmlDeviceGetSupportedClocksThrottleReasons, nvmlDeviceGetSupportedClocksEventReasons);

API nvmlReturn_t
nvmlDeviceGetAdaptiveClockInfoStatus (nvmlDevice_t device, unsigned int *status)
{
    BEGIN ();
    GPU (device);
    NEED (status);
    *status = 1;
    return NVML_SUCCESS;
}

API nvmlReturn_t
nvmlDeviceGetClkMonStatus (nvmlDevice_t device, struct nvml_clk_mon *status)
{
    BEGIN ();
    GPU (device);
    NEED (status);
    status->faulty = status->count = 0;
    return NVML_SUCCESS;
}

API nvmlReturn_t
nvmlDeviceGetPerformanceModes (nvmlDevice_t device, struct nvml_text_2048 *modes)
{
    BEGIN ();
    GPU (device);
    NEED_VERSION (modes, 1);
    memset (modes->text, 0, sizeof modes->text);
    (void)snprintf (
        modes->text, sizeof modes->text,
        "perf=0, nvclock=%u, nvclockmin=210, nvclockmax=%u, nvclockeditable=0, memclock=%u, memclockmin=%u, "
        "memclockmax=%u, memclockeditable=0",
        gpu->profile->clock_graphics, gpu->profile->clock_graphics, gpu->profile->clock_memory,
        gpu->profile->clock_memory, gpu->profile->clock_memory);
    return NVML_SUCCESS;
}

API nvmlReturn_t
nvmlDeviceGetCurrentClockFreqs (nvmlDevice_t device, struct nvml_text_2048 *clocks)
{
    BEGIN ();
    GPU (device);
    NEED_VERSION (clocks, 1);
    memset (clocks->text, 0, sizeof clocks->text);
    (void)snprintf (clocks->text, sizeof clocks->text, "perf=0, nvclock=%u, memclock=%u", nvs_clock (gpu, 0),
                    nvs_clock (gpu, 2));
    return NVML_SUCCESS;
}
