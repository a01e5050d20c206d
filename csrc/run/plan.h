/* SPDX-License-Identifier: Apache-2.0 */
/* What nvsandbox-run was told to do (struct nvs_run in protocol.h), read and checked. */
#ifndef NVSANDBOX_RUN_PLAN_H
#define NVSANDBOX_RUN_PLAN_H

#include <stddef.h>

#include "control.h"
#include "protocol.h"

struct nvs_plan {
    struct nvs_run run;
    struct nvs_options options; /* of the first step of the ladder; the others differ in `isolation` alone */
    char *environment;          /* environment_len bytes, the last of them a NUL */
};

/* Reads the memfd and closes it. */
int nvs_plan_read (struct nvs_plan *plan, int fd, struct nvs_error *error);

/* As execve takes it; NULL when there is no memory. */
char **nvs_plan_environment (const struct nvs_plan *plan);

#endif
