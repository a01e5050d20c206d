/* SPDX-License-Identifier: Apache-2.0 */
/* Mapping all ids into a new user namespace, where the caller's privileges allow it: else only its own two are. */
#ifndef NVSANDBOX_RUN_IDMAP_H
#define NVSANDBOX_RUN_IDMAP_H

#include <stdbool.h>
#include <sys/types.h>

/* A child that stays outside of the new namespace, for only from there more than one id can be mapped. */
struct nvs_id_mapper {
    pid_t pid; /* 0: there is none */
    int go;    /* what is written to makes it write the maps; its end ends the child */
};

/* Before the namespace is made. Without CAP_SETUID, CAP_SETGID and CAP_SETFCAP (which the kernel asks for where id 0 is
 * mapped) no child is started. */
void nvs_id_mapper_start (struct nvs_id_mapper *mapper);

/* In the new namespace: whether all ids of the outer one are mapped to themselves now. With `map` false, or where that
 * fails, none is. The child is gone in any case. */
bool nvs_id_mapper_finish (struct nvs_id_mapper *mapper, bool map);

/* Whether this process's namespace knows more than one group: the others are shown as 65534. */
bool nvs_ids_are_mapped (void);

#endif
