/* SPDX-License-Identifier: Apache-2.0 */
/* The dev root's devices that are not the driver's own: DRM, GPUDirect, InfiniBand, /dev/kmsg, … */
#ifndef NVSANDBOX_RUN_DEVICES_H
#define NVSANDBOX_RUN_DEVICES_H

#include <stdbool.h>

#include "devtree.h"

/* Shows what NVML cannot create of the dev root: character devices but memory and terminals, directories but those of
 * disks, and links. `drm`: /dev/dri as well, whose nodes are of all GPUs. One that cannot be shown is left out. */
void nvs_show_other_devices (const struct nvs_devtree *tree, bool drm);

#endif
