/* SPDX-License-Identifier: Apache-2.0 */
/* The name of each step, as it stands in error messages and reports. */
#ifndef NVSANDBOX_STEPS_H
#define NVSANDBOX_STEPS_H

#include "protocol.h"

static inline const char *
nvs_step_name (enum nvs_step step)
{
    switch (step) {
    case NVS_STEP_NONE: return "none";
    case NVS_STEP_SPAWN: return "spawn";
    case NVS_STEP_HELLO: return "hello";
    case NVS_STEP_DESCRIPTORS: return "descriptors";
    case NVS_STEP_USER_NS: return "user namespace";
    case NVS_STEP_ID_MAP: return "id map";
    case NVS_STEP_MOUNT_NS: return "mount namespace";
    case NVS_STEP_PROPAGATION: return "propagation";
    case NVS_STEP_DEV_ROOT: return "dev root";
    case NVS_STEP_DEV_TMPFS: return "tmpfs on /dev";
    case NVS_STEP_DEV_BASE: return "base nodes";
    case NVS_STEP_DEV_NVIDIA: return "NVIDIA nodes";
    case NVS_STEP_PARAMS: return "driver parameters";
    case NVS_STEP_CAPS: return "capabilities";
    case NVS_STEP_NO_NEW_PRIVS: return "no_new_privs";
    case NVS_STEP_LANDLOCK: return "Landlock";
    case NVS_STEP_SECCOMP: return "seccomp";
    case NVS_STEP_CHECK: return "self check";
    case NVS_STEP_VERIFY: return "verification";
    case NVS_STEP_LIBRARY: return "library";
    case NVS_STEP_INIT: return "initialisation";
    case NVS_STEP_CHANNEL: return "channel";
    case NVS_STEP_WORKING_DIR: return "working directory";
    case NVS_STEP_COUNT: break;
    }
    return "unknown step";
}

#endif
