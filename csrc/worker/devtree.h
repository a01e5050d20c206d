/* SPDX-License-Identifier: Apache-2.0 */
/* The private /dev: what is in the dev root is looked at first, then a tmpfs covers /dev and is filled. */
#ifndef NVSANDBOX_WORKER_DEVTREE_H
#define NVSANDBOX_WORKER_DEVTREE_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "lockdown.h"
#include "protocol.h"

#define NVS_NODES_MAX     4096u
#define NVS_NODE_NAME_MAX 80u

/* A node of the dev root that the private /dev is to show. The name is relative, such as "nvidia-caps/nvidia-cap1". */
struct nvs_node {
    char name[NVS_NODE_NAME_MAX];
    char target[NVS_NODE_NAME_MAX]; /* of a link in char/: the node that it points to; else empty */
    mode_t mode;
    uid_t uid;
    gid_t gid;
    dev_t device;
};

struct nvs_devtree {
    const struct nvs_policy *policy;
    bool bind_only; /* in a user namespace mknod cannot work, so it is not tried */
    int root;       /* O_PATH: the dev root as it was before anything was covered */
    int old;        /* O_PATH: the old /dev, or -1 where there is none */
    int dev;        /* O_PATH: the private /dev */
    uint32_t count;
    uint32_t capacity;
    struct nvs_node *nodes; /* sorted by name once the survey is done */
    uint32_t shown;         /* how many NVIDIA nodes the private /dev has; links do not count */
};

int nvs_devtree_survey (struct nvs_devtree *tree, const struct nvs_policy *policy, struct nvs_error *error);
int nvs_devtree_cover (struct nvs_devtree *tree, struct nvs_error *error);
int nvs_devtree_base (struct nvs_devtree *tree, struct nvs_error *error);
int nvs_devtree_nvidia (struct nvs_devtree *tree, struct nvs_error *error);

/* Parts of the above, for nvsandbox-run, which fills the rest differently. */
int nvs_devtree_nodes (const struct nvs_devtree *tree, struct nvs_error *error); /* null, ..., tty, and links */
int nvs_devtree_folder (const struct nvs_devtree *tree, const char *name, mode_t mode, struct nvs_error *error);
int nvs_devtree_link (const struct nvs_devtree *tree, const char *name, const char *target, struct nvs_error *error);
int nvs_devtree_bind (const struct nvs_devtree *tree, const char *name); /* of the old /dev; 0, or an errno */
/* Read-only, below `source`; 0, or an errno, and then it is not there. */
int nvs_devtree_bind_folder (const struct nvs_devtree *tree, int source, const char *name);
/* A node of the dev root: made where that may be, else bound. Whether it is there. */
bool nvs_devtree_show (const struct nvs_devtree *tree, const struct nvs_node *node);
/* Whether NVML, or the nvidia-modprobe that it runs, can create an entry of this name in /dev, or whatever is in it. */
bool nvs_devtree_is_nvmls (const char *name);
int nvs_devtree_no_files (const struct nvs_devtree *tree, struct nvs_error *error); /* ModifyDeviceFiles: 0 */

/* Where NVML must not create nodes: tells it so, and makes the private /dev read-only. */
int nvs_devtree_params (struct nvs_devtree *tree, struct nvs_error *error);

void nvs_devtree_release (struct nvs_devtree *tree);

#endif
