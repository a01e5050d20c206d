/* SPDX-License-Identifier: Apache-2.0 */
/* A Landlock domain around the worker, or around a program that `run` executes: what it may write to or name, and that it
 * stays away from other processes. */
#ifndef NVSANDBOX_WORKER_LANDLOCK_H
#define NVSANDBOX_WORKER_LANDLOCK_H

#include "lockdown.h"
#include "protocol.h"

/* Both after no_new_privs, which Landlock asks for, and before the filter: from then on the /dev that the rules name is
 * settled. That the kernel has no Landlock is no failure. */

/* Sets policy->landlock. */
int nvs_landlock (struct nvs_policy *policy, struct nvs_error *error);

/* GUARD's names in the host's /dev and, as --lockdown has it, other processes. */
int nvs_landlock_program (enum nvs_isolation isolation, struct nvs_error *error);

#endif
