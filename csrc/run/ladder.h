/* SPDX-License-Identifier: Apache-2.0 */
/* The steps of the isolation ladder, for a process that is to become a program. */
#ifndef NVSANDBOX_RUN_LADDER_H
#define NVSANDBOX_RUN_LADDER_H

#include <stddef.h>

#include "plan.h"
#include "protocol.h"

/* The best step of those that the plan allows which works here; 0 if none does, and then `why` says of each why not, or
 * `error` what no other step would mend. The last one that is left is not tried. */
enum nvs_isolation nvs_ladder_choose (const struct nvs_plan *plan, char *why, size_t size, struct nvs_error *error);

/* Isolates this process. `folder` gets a descriptor of the private /dev, or -1 where there is none. */
int nvs_ladder_climb (const struct nvs_plan *plan, enum nvs_isolation step, int *folder, struct nvs_error *error);

/* The name of a step, as options have it. */
const char *nvs_ladder_name (enum nvs_isolation step);

#endif
