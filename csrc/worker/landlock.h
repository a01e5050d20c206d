/* SPDX-License-Identifier: Apache-2.0 */
/* A Landlock domain around the worker: what it may write to, and that it stays away from other processes. */
#ifndef NVSANDBOX_WORKER_LANDLOCK_H
#define NVSANDBOX_WORKER_LANDLOCK_H

#include "lockdown.h"
#include "protocol.h"

/* Sets policy->landlock. That the kernel has no Landlock is no failure. */
int nvs_landlock (struct nvs_policy *policy, struct nvs_error *error);

#endif
