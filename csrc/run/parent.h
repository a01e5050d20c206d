/* SPDX-License-Identifier: Apache-2.0 */
/* --report: the parent gets hold of the private /dev before the program begins. */
#ifndef NVSANDBOX_RUN_PARENT_H
#define NVSANDBOX_RUN_PARENT_H

#include "protocol.h"

/* Sends struct nvs_run_ready and waits until the parent has looked. `folder` is of the private /dev, or -1. */
int nvs_parent_tell (int parent, enum nvs_isolation isolation, int folder, struct nvs_error *error);

#endif
