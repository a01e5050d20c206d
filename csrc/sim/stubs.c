/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A stub for every function of NVML: the checks that the real one begins with, then NOT_SUPPORTED. They are weak,
 * so that a definition elsewhere takes their place. Callers pass more arguments, of other types, than a stub
 * declares: all are integers or pointers, and in the calling conventions of x86-64 and aarch64 a function may
 * ignore its registers.
 */
#include "sim.h"

#define WEAK __attribute__ ((weak, visibility ("default")))

#define STUB_D(name)                             \
    WEAK nvmlReturn_t name (nvmlDevice_t device) \
    {                                            \
        BEGIN ();                                \
        DEVICE (device);                         \
        return NVML_ERROR_NOT_SUPPORTED;         \
    }
#define STUB_DP(name)                                                 \
    WEAK nvmlReturn_t name (nvmlDevice_t device, const void *pointer) \
    {                                                                 \
        BEGIN ();                                                     \
        DEVICE (device);                                              \
        NEED (pointer);                                               \
        return NVML_ERROR_NOT_SUPPORTED;                              \
    }
#define STUB_G(name)                               \
    WEAK nvmlReturn_t name (nvmlGpuInstance_t gi)  \
    {                                              \
        BEGIN ();                                  \
        if (!nvs_handle_known (gi, NVS_HANDLE_GI)) \
            return NVML_ERROR_INVALID_ARGUMENT;    \
        return NVML_ERROR_NOT_SUPPORTED;           \
    }
#define STUB_E(name)                                    \
    WEAK nvmlReturn_t name (nvmlEventSet_t set)         \
    {                                                   \
        BEGIN ();                                       \
        if (!nvs_handle_known (set, NVS_HANDLE_EVENTS)) \
            return NVML_ERROR_INVALID_ARGUMENT;         \
        return NVML_ERROR_NOT_SUPPORTED;                \
    }
#define STUB_H(name)                         \
    WEAK nvmlReturn_t name (nvmlUnit_t unit) \
    {                                        \
        BEGIN ();                            \
        (void)unit;                          \
        return NVML_ERROR_INVALID_ARGUMENT;  \
    }
#define STUB_P(name)                             \
    WEAK nvmlReturn_t name (const void *pointer) \
    {                                            \
        BEGIN ();                                \
        NEED (pointer);                          \
        return NVML_ERROR_NOT_SUPPORTED;         \
    }
#define STUB_N(name)                     \
    WEAK nvmlReturn_t name (void)        \
    {                                    \
        BEGIN ();                        \
        return NVML_ERROR_NOT_SUPPORTED; \
    }

#define X(kind, name) STUB_##kind (name)
#include "stubs.def"
#undef X
