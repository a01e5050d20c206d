/* SPDX-License-Identifier: Apache-2.0 */
/* What the worker may still do after set-up: the policy for device nodes, capabilities, no_new_privs, seccomp. */
#ifndef NVSANDBOX_WORKER_LOCKDOWN_H
#define NVSANDBOX_WORKER_LOCKDOWN_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "control.h"
#include "protocol.h"

#define NVS_MAJORS_MAX 32u

/* Which device nodes are NVIDIA's. The private /dev shows no others, and mknod makes no others.
 *
 * A major is on the list only while a driver has it registered. To open a node whose major nobody has registered makes
 * the kernel run modprobe for char-major-N-M with full privileges, whoever opens it: without a driver, a leftover
 * /dev/nvidiactl would be a trap, and nvsandbox never causes a module to load. */
struct nvs_policy {
    uint32_t majors_count;
    uint32_t majors[NVS_MAJORS_MAX];
    bool dxg;           /* WSL's misc device is registered */
    bool mknod;         /* NVML may create nodes: CAP_MKNOD is kept */
    bool landlock;      /* the worker is in a Landlock domain */
    bool program;       /* nvsandbox-run: a program will be executed, and what is kept must last over that */
    uint64_t keep_caps; /* all the capabilities that the worker has after the lockdown */
    const struct nvs_options *options;
};

/* Cannot fail: what cannot be read counts as absent, which allows less. */
void nvs_policy_read (struct nvs_policy *policy, const struct nvs_options *options);

/* Whether a character device is one of NVIDIA's and, with a devices filter, not one of a hidden GPU. */
bool nvs_policy_allows (const struct nvs_policy *policy, dev_t device);

/* Whether the GPU of this minor number is shown. */
bool nvs_policy_shows_gpu (const struct nvs_policy *policy, unsigned int minor);

int nvs_lockdown_caps (struct nvs_policy *policy, struct nvs_error *error);
int nvs_lockdown_no_new_privs (struct nvs_error *error);
int nvs_lockdown_seccomp (const struct nvs_policy *policy, struct nvs_error *error);

/* Of the filters the one for mknod alone: the policy's devices, and no block devices. */
int nvs_lockdown_mknod (const struct nvs_policy *policy, struct nvs_error *error);

/* And the list that `run --lockdown` has: what no program that reads GPUs needs. Besides nvs_lockdown_mknod, and after
 * no_new_privs. */
int nvs_lockdown_program (struct nvs_error *error);

/* The bounding set as a mask. */
uint64_t nvs_lockdown_bounding (void);

#endif
