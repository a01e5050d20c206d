/* SPDX-License-Identifier: Apache-2.0 */
/* Leaving the caller's mount namespace, in four steps that must be taken in this order. */
#ifndef NVSANDBOX_WORKER_NAMESPACE_H
#define NVSANDBOX_WORKER_NAMESPACE_H

#include <sys/types.h>

#include "protocol.h"

int nvs_namespace_user (struct nvs_error *error);
int nvs_namespace_id_map (uid_t uid, gid_t gid, struct nvs_error *error);
int nvs_namespace_mount (struct nvs_error *error);

/* Cuts propagation to the outside, and proves it. Nothing may be mounted before this has returned 0. */
int nvs_namespace_propagation (struct nvs_error *error);

/* The same for /dev alone: what is mounted elsewhere goes on reaching the outside. /dev has to be a mount of its own. */
int nvs_namespace_propagation_of_dev (struct nvs_error *error);

/* The mount namespace's inode number, 0 where /proc does not tell. */
uint64_t nvs_namespace_mount_id (void);

#endif
