/* SPDX-License-Identifier: Apache-2.0 */
/* Choosing, checking and loading libnvidia-ml.so.1, and the balance of its initialisations. */
#ifndef NVSANDBOX_WORKER_LIBRARY_H
#define NVSANDBOX_WORKER_LIBRARY_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "../protocol.h"

/* Start from all zeros. */
struct nvs_library {
    void *handle;
    void *map;               /* its struct link_map: tells its own symbols from its dependencies' */
    char path[NVS_PATH_MAX]; /* what was loaded */
    _Atomic uint32_t inits;  /* successful nvmlInit* less successful nvmlShutdown */
};

/* Loads the first candidate that is NVML. What became of each goes into `tried`, "path: reason\n" each, as much as
 * fits, and how many more there are; on failure the error is about the most telling one. */
int nvs_library_load (struct nvs_library *lib, const char *const *candidates, uint32_t count, char *tried,
                      size_t tried_size, struct nvs_error *error);

/* Initialises with the newest entry that the library has. `result` is its nvmlReturn_t; -1 only if it has none. */
int nvs_library_init (struct nvs_library *lib, int32_t *result, struct nvs_error *error);

/* Calls nvmlShutdown once for each initialisation that is still open. */
void nvs_library_shutdown (struct nvs_library *lib);

/* The address of a function, NULL if the library itself has none of that name, or the name is not one of NVML's. */
void *nvs_library_symbol (const struct nvs_library *lib, const char *name);

/* Calls that came in frames: a successful nvmlInit*, a successful nvmlShutdown. The latter returns how many
 * are still open. */
void nvs_library_note_init (struct nvs_library *lib);
uint32_t nvs_library_note_shutdown (struct nvs_library *lib);

#endif
