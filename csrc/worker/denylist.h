/* SPDX-License-Identifier: Apache-2.0 */
/* The filters that denylist.c writes when the package is built, and lockdown.c loads. */
#ifndef NVSANDBOX_WORKER_DENYLIST_H
#define NVSANDBOX_WORKER_DENYLIST_H

#include <linux/filter.h>

/* Filters, by their index in nvs_denylists: the worker's for each combination of the first three, then the one of
 * `run --lockdown`. */
enum nvs_denylist_variant {
    NVS_DENYLIST_MKNOD = 1u << 0,      /* NVML makes nodes and sets their modes */
    NVS_DENYLIST_PRIVILEGED = 1u << 1, /* NVML's setters reach nvidia-persistenced over its socket */
    NVS_DENYLIST_GUARD = 1u << 2,      /* the /dev is the host's */
    NVS_DENYLIST_PROGRAM = 1u << 3,
    NVS_DENYLISTS
};

#define NVS_DENYLIST_MAX 1024u

/* A comparison with this stands in them for one with the worker's process id. The kernel gives no such: they end at 2^22. */
#define NVS_DENYLIST_SELF    0x5e1f5e1fu
#define NVS_DENYLIST_COMPARE (BPF_JMP | BPF_JEQ | BPF_K)

#endif
