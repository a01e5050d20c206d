/* SPDX-License-Identifier: Apache-2.0 */
/* nvsandbox-run [OPTION...] -- COMMAND [ARGUMENT...]: the program by itself, for images that have no Python. */
#ifndef NVSANDBOX_RUN_CMDLINE_H
#define NVSANDBOX_RUN_CMDLINE_H

#include "plan.h"
#include "protocol.h"

/* Makes the plan from the options, and from the environment where an option is not given. Gives COMMAND and what follows
 * it, or NULL for a wrong option, which the error's detail tells in full. With --help it prints that and exits. */
char **nvs_cmdline_read (char **argv, struct nvs_plan *plan, struct nvs_error *error);

/* The file that a shell would execute for `name`, in `found`; 0, or the exit status that shells have for the reason. */
int nvs_cmdline_find (const char *name, char *found, size_t size);

#endif
