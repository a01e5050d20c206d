/* SPDX-License-Identifier: Apache-2.0 */
/* The worker's own proof that it is isolated and locked down. */
#ifndef NVSANDBOX_WORKER_CHECK_H
#define NVSANDBOX_WORKER_CHECK_H

#include "lockdown.h"
#include "protocol.h"

/* Asks the kernel, fills the report with the answers, and fails if one is not what the steps should have led to.
 * `mount_ns_before` is nvs_namespace_mount_id () from before the steps. */
int nvs_check (const struct nvs_policy *policy, uint64_t mount_ns_before, struct nvs_report *report,
               struct nvs_error *error);

/* Parts of it, for nvsandbox-run, which locks down less unless it is asked to. */
int nvs_check_dev (const struct nvs_policy *policy, uint64_t mount_ns_before, struct nvs_report *report,
                   struct nvs_error *error);
int nvs_check_privileges (const struct nvs_policy *policy, struct nvs_report *report, struct nvs_error *error);
int nvs_check_mknod (const struct nvs_policy *policy, struct nvs_error *error);

#endif
