/* SPDX-License-Identifier: Apache-2.0 */
/* A Landlock domain for a program: GUARD's names in the host's /dev, and with --lockdown other processes. */
#ifndef NVSANDBOX_RUN_DOMAIN_H
#define NVSANDBOX_RUN_DOMAIN_H

#include <stdbool.h>

#include "protocol.h"

/* After no_new_privs. `entered` tells whether the kernel has Landlock; that it has not is no failure. */
int nvs_domain (enum nvs_isolation isolation, bool *entered, struct nvs_error *error);

#endif
