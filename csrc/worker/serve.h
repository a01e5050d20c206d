/* SPDX-License-Identifier: Apache-2.0 */
/* Serving one frame: finding a function, or calling it. */
#ifndef NVSANDBOX_WORKER_SERVE_H
#define NVSANDBOX_WORKER_SERVE_H

#include "../protocol.h"
#include "frame.h"
#include "library.h"

struct nvs_serve;

/* What all channels of a worker share: the library, the functions found in it, the handles. NULL without memory. */
struct nvs_serve *nvs_serve_new (struct nvs_library *lib, uint32_t generation);
void nvs_serve_free (struct nvs_serve *serve);

/* A reply in its parts: the header, reply.data_len bytes of data, reply.strings_len bytes of strings. They live in
 * the buffers, until the next frame. */
struct nvs_answer {
    struct nvs_reply reply;
    const void *data;
    const void *strings;
};

/* Serves the request of `length` bytes in buffers->frame. The answer is at most `capacity` bytes long. */
void nvs_serve_frame (struct nvs_serve *serve, struct nvs_buffers *buffers, uint32_t length, uint32_t capacity,
                      struct nvs_answer *answer);

#endif
