/* SPDX-License-Identifier: Apache-2.0 */
/* The last words of a run that came to nothing. */
#ifndef NVSANDBOX_RUN_SAY_H
#define NVSANDBOX_RUN_SAY_H

#include <stdbool.h>
#include <stddef.h>

#include "protocol.h"

/* As GNU env, timeout and nohup have it. */
enum {
    NVS_EXIT_FAILED = 125,     /* nvsandbox itself */
    NVS_EXIT_CANNOT_RUN = 126, /* the program is there and cannot be executed */
    NVS_EXIT_NOT_FOUND = 127,
};

/* Room for an error as text. */
#define NVS_SAY_MAX (sizeof (struct nvs_error) + 256)
/* And for what became of each step of the ladder. */
#define NVS_SAY_ALL_MAX (4 * NVS_SAY_MAX)

/* The error in the words of the Python side: what, where, why. */
void nvs_say_text (const struct nvs_error *error, char *text, size_t size);

/* Writes to stderr, as a line or as JSON, which repeats the exit status. */
void nvs_say (const char *text, const char *type, int exit_status, bool json);

#endif
