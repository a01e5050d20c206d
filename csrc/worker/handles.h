/* SPDX-License-Identifier: Apache-2.0 */
/* The table behind handle tokens: what a caller holds (protocol.h, "handle tokens") against what NVML gave out. */
#ifndef NVSANDBOX_WORKER_HANDLES_H
#define NVSANDBOX_WORKER_HANDLES_H

#include "../protocol.h"

struct nvs_handles;

/* NULL without memory. Of `generation` the low 20 bits count. */
struct nvs_handles *nvs_handles_new (uint32_t generation);
void nvs_handles_free (struct nvs_handles *handles);

/* The token for a value that the library gave out: the same one for the same value and kind for as long as it
 * lives. Any 64 bits are a value, since NVML may hand out numbers instead of pointers; 0 stays 0. Returns 0, or -1
 * when the table is full or memory is out. */
int nvs_handles_intern (struct nvs_handles *handles, uint64_t value, uint32_t kind, uint64_t *token);

/* What a token stands for. NVS_STATUS_OK; NVS_STATUS_BAD_HANDLE for what is no token or one of another kind;
 * NVS_STATUS_STALE_HANDLE for one of another worker, or one that was retired. */
enum nvs_status nvs_handles_lookup (struct nvs_handles *handles, uint64_t token, uint32_t kind, uint64_t *value);

/* The object is gone: its token is stale from now on. Of a token that is not alive nothing happens. */
void nvs_handles_retire (struct nvs_handles *handles, uint64_t token);
void nvs_handles_retire_all (struct nvs_handles *handles);

/* How many tokens are alive. */
uint32_t nvs_handles_count (struct nvs_handles *handles);

#endif
