/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the simulator's files share: the simulated machine, and how a call begins.
 *
 * Every exported function starts the same way, and returns what that start says unless it is NVML_SUCCESS:
 *
 *     API nvmlReturn_t
 *     nvmlDeviceGetX (nvmlDevice_t device, unsigned int *x)
 *     {
 *         BEGIN ();               injected faults, "is NVML initialised", the lock (until the function returns)
 *         GPU (device);           declares `gpu`: checked, present, not a MIG device
 *         NEED (x);               a pointer that must not be NULL
 *         ...
 */
#ifndef NVSANDBOX_SIM_SIM_H
#define NVSANDBOX_SIM_SIM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "nvml_abi.h"
#include "options.h"
#include "profile.h"

#define API __attribute__ ((visibility ("default")))
/* The same function under an older name whose meaning and arguments never changed. */
#define ALIAS(old, new) API __typeof__ (new) old __attribute__ ((alias (#new)))

#pragma GCC visibility push(hidden)

#define NVS_SLICES 8u /* memory slices of a GPU with MIG */
#define NVS_NO_ID  0xffffffffu
#define NVS_NA64   UINT64_MAX
#define NVS_NA32   UINT32_MAX
#define NVS_MIB    (1024ull * 1024)

/* What a device handle points at: a GPU (gi and ci NULL) or a MIG device. */
struct nvs_device {
    struct nvs_gpu *gpu;
    struct nvs_gi *gi;
    struct nvs_ci *ci;
};

struct nvs_ci {
    struct nvs_gi *gi;
    unsigned id, start, slices;
    struct nvs_device *device;
    char uuid[48];
};

struct nvs_gi {
    struct nvs_gpu *gpu;
    const struct nvs_mig_profile *profile;
    unsigned id, start;
    struct nvs_ci *cis[NVS_SLICES];
};

struct nvs_gpu {
    const struct nvs_profile *profile;
    struct nvs_device *device;
    unsigned slot;  /* its place in the machine: identifiers and load come from it */
    unsigned index; /* its place among the GPUs that NVML sees */
    unsigned minor;
    bool lost;
    unsigned domain, bus;
    uint8_t uuid_bytes[16];
    char uuid[48], serial[16], bus_id[32], bus_id_short[16], part_number[24];
    /* What setters change. */
    unsigned persistence, compute_mode, ecc_pending, accounting, mig, mig_pending;
    unsigned power_limit_mw, app_clock_mem, app_clock_graphics, locked_min, locked_max;
    unsigned gpm_streaming, ecc_cleared;
    double energy_mj; /* used before energy_since: the limit, and with it the power, was another one */
    double energy_since;
    struct nvs_gi *gis[NVS_SLICES];
};

struct nvs_machine {
    struct nvs_options options;
    unsigned count;                    /* GPUs that NVML sees */
    struct nvs_gpu gpus[NVS_GPUS_MAX]; /* those */
    unsigned growth;                   /* grow=1: by how much lists have grown */
    bool xid_given;                    /* xid=: once */
};

extern struct nvs_machine nvs_machine;

/* state.c */
int nvs_machine_setup (const struct nvs_options *options, const char *description);
void *nvs_handle_new (size_t size, int kind); /* NULL without memory */
void nvs_handle_free (void *handle);
bool nvs_handle_known (const void *handle, int kind); /* strict_handles=1: aborts rather than say no */
bool nvs_handle_exists (const void *handle, int kind);
enum {
    NVS_HANDLE_DEVICE = 1,
    NVS_HANDLE_GI,
    NVS_HANDLE_CI,
    NVS_HANDLE_EVENTS,
    NVS_HANDLE_SYSTEM_EVENTS,
    NVS_HANDLE_SAMPLE
};
uint64_t nvs_hash (uint64_t a, uint64_t b);
void nvs_uuid_make (char text[48], uint8_t bytes[16], const char *prefix, uint64_t a, uint64_t b);
double nvs_seconds (void); /* since the machine started; stands still with frozen=1 */
uint64_t nvs_unix_us (void);

/* faults.c */
struct nvs_call {
    nvmlReturn_t result;
    bool locked;
};
nvmlReturn_t nvs_begin (struct nvs_call *call, const char *function);
void nvs_begin_init (struct nvs_call *call); /* only the lock: nvmlInit has no options yet */
void nvs_inject (const char *function);
void nvs_end (struct nvs_call *call);
/* Waits, without the lock, until the time is up (TIMEOUT; NVS_NO_ID is for ever), or the handle or NVML itself
 * is gone. */
nvmlReturn_t nvs_wait (struct nvs_call *call, unsigned timeout_ms, const void *handle, int kind);
void nvs_wake (void); /* after a handle went, or the last nvmlShutdown */
void nvs_sleep_us (uint64_t us);
extern unsigned nvs_references; /* nvmlInit less nvmlShutdown */

/* Both say which GPU_IS_LOST, INVALID_ARGUMENT or, for a MIG device where a GPU is needed, NOT_SUPPORTED applies. */
nvmlReturn_t nvs_device_check (nvmlDevice_t device);
nvmlReturn_t nvs_gpu_of (nvmlDevice_t device, struct nvs_gpu **gpu);
bool nvs_is_admin (void); /* setters need CAP_SYS_ADMIN */
nvmlReturn_t nvs_text (char *out, unsigned size, const char *text);

/* Two-call lists: what the caller's count and buffer mean for a list of `have`. SUCCESS: there is
 * room, and *count is `have`. */
nvmlReturn_t nvs_list (unsigned *count, const void *out, unsigned have);
unsigned nvs_grown (unsigned have); /* grow=1 */

/* nodes.c */
void nvs_nodes_make (void);
void nvs_nodes_mig (const struct nvs_gpu *gpu);

/* load.c */
unsigned nvs_util_gpu (const struct nvs_gpu *gpu);
unsigned nvs_util_memory (const struct nvs_gpu *gpu);
unsigned nvs_util_at (const struct nvs_gpu *gpu, double seconds);
unsigned nvs_power_mw (const struct nvs_gpu *gpu);
unsigned nvs_power_at (const struct nvs_gpu *gpu, double seconds);
double nvs_load_sum (const struct nvs_gpu *gpu); /* percent-seconds of load since the machine started */
double nvs_energy_mj (const struct nvs_gpu *gpu);
unsigned nvs_temperature (const struct nvs_gpu *gpu);
unsigned nvs_temperature_memory (const struct nvs_gpu *gpu);
unsigned nvs_clock (const struct nvs_gpu *gpu, unsigned type);
unsigned nvs_clock_max (const struct nvs_gpu *gpu, unsigned type);
void nvs_set_power_limit (struct nvs_gpu *gpu, unsigned milliwatts);

/* process.c */
struct nvs_process {
    unsigned pid;
    uint64_t memory;
    unsigned gi, ci;  /* NVS_NO_ID outside MIG */
    unsigned sm, mem; /* percent */
};
unsigned nvs_process_count (const struct nvs_device *device);
struct nvs_process nvs_process_get (const struct nvs_device *device, unsigned i, unsigned count);
uint64_t nvs_process_memory (const struct nvs_device *device); /* all of them together */

/* memory.c */
struct nvml_memory_v2 nvs_memory (const struct nvs_device *device);

/* mig.c */
int nvs_mig_layout (struct nvs_gpu *gpu, const char *layout);
void nvs_mig_clear (struct nvs_gpu *gpu);
struct nvs_ci *nvs_mig_device (struct nvs_gpu *gpu, unsigned index);

#pragma GCC visibility pop

#define TRY(expression)                         \
    do {                                        \
        nvmlReturn_t try_result = (expression); \
        if (try_result != NVML_SUCCESS)         \
            return try_result;                  \
    } while (0)

#define BEGIN()                                               \
    __attribute__ ((cleanup (nvs_end))) struct nvs_call call; \
    TRY (nvs_begin (&call, __func__))

#define DEVICE(device) TRY (nvs_device_check (device))

#define GPU(device)             \
    struct nvs_gpu *gpu = NULL; \
    TRY (nvs_gpu_of (device, &gpu))

#define NEED(pointer)                           \
    do {                                        \
        if ((pointer) == NULL)                  \
            return NVML_ERROR_INVALID_ARGUMENT; \
    } while (0)

#define NEED_VERSION(pointer, n)                                 \
    do {                                                         \
        NEED (pointer);                                          \
        if ((pointer)->version != NVS_VERSIONED (*(pointer), n)) \
            return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;         \
    } while (0)

#define NEED_ADMIN()                         \
    do {                                     \
        if (!nvs_is_admin ())                \
            return NVML_ERROR_NO_PERMISSION; \
    } while (0)

#endif
