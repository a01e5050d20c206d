/* SPDX-License-Identifier: Apache-2.0 */
/* What a whole program needs in its /dev besides nodes, and shares with the host: terminals, shared memory, the log. */
#ifndef NVSANDBOX_RUN_SHARED_H
#define NVSANDBOX_RUN_SHARED_H

#include "devtree.h"
#include "protocol.h"

/* Instead of nvs_devtree_base. */
int nvs_shared_base (const struct nvs_devtree *tree, struct nvs_error *error);

#endif
