/* SPDX-License-Identifier: Apache-2.0 */
/* --lockdown's filter: what no program that reads GPUs needs. */
#ifndef NVSANDBOX_RUN_FILTER_H
#define NVSANDBOX_RUN_FILTER_H

#include "protocol.h"

/* Besides nvs_lockdown_mknod, and after no_new_privs. */
int nvs_filter_program (struct nvs_error *error);

#endif
