/* SPDX-License-Identifier: Apache-2.0 */
/* The channels that calls come in on: a thread for each. */
#ifndef NVSANDBOX_WORKER_CHANNELS_H
#define NVSANDBOX_WORKER_CHANNELS_H

#include <stdint.h>

#include "../protocol.h"
#include "library.h"

struct nvs_channels;

/* The library is loaded already. `generation`: 20 random bits for the handle tokens; `spinning_max`: how many threads may
 * spin at a time. NULL without memory. */
struct nvs_channels *nvs_channels_new (struct nvs_library *lib, uint32_t generation, uint32_t spinning_max);

/* Starts to serve a channel. Takes the descriptor in any case. `size` is a lane's. */
int nvs_channels_open (struct nvs_channels *channels, uint32_t kind, int fd, uint64_t size, struct nvs_error *error);

/* No new calls from now on; waits for those that run, up to the limit. For ever: there is no way back. */
void nvs_channels_drain (struct nvs_channels *channels, uint32_t limit_ms);

/* How many are being served. */
uint32_t nvs_channels_count (struct nvs_channels *channels);

/* Only when the count is 0. The worker ends without it. */
void nvs_channels_free (struct nvs_channels *channels);

#endif
