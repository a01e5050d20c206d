/* SPDX-License-Identifier: Apache-2.0 */
/* From a request's bytes to a call's registers and memory, and back to a reply. The layout is protocol.h's. */
#ifndef NVSANDBOX_WORKER_FRAME_H
#define NVSANDBOX_WORKER_FRAME_H

#include <stdbool.h>
#include <stddef.h>

#include "../protocol.h"
#include "handles.h"

/* One place in the data that a relocation names: what the caller sent, and what the library got. */
struct nvs_place {
    uint64_t sent;
    uint64_t given;
};

/* A channel's memory. It grows to what the channel's calls need and is then used again, so that a call allocates
 * nothing. Start from all zeros. */
struct nvs_buffers {
    unsigned char *frame; /* the private copy of the request; malloc aligns it to NVS_DATA_ALIGN */
    size_t frame_size;
    struct nvs_place *places;
    size_t places_size;
    char *strings; /* of the reply */
    size_t strings_size;
    size_t strings_len;
    unsigned char *kept; /* a whole reply that did not fit its channel, for FETCH; NULL if there is none */
    size_t kept_len;
    bool kept_fetched; /* its last byte has been fetched */
};

/* Room for a frame of `size` bytes; what was in it is lost. NULL without memory. */
void *nvs_buffers_frame (struct nvs_buffers *buffers, size_t size);
/* After a reply: gives back what only an unusually large frame needed, and a kept reply that was fetched. */
void nvs_buffers_trim (struct nvs_buffers *buffers);
void nvs_buffers_free (struct nvs_buffers *buffers);

/* A decoded request. Pointers are into the frame. */
struct nvs_call {
    const struct nvs_request *request;
    const struct nvs_reloc *relocs;
    unsigned char *data;
    uint64_t registers[NVS_ARGS_MAX];
};

/* Decodes the `length` bytes in buffers->frame. A frame that is refused is left as it was.
 * For the statuses about handles, `index` is the argument's number, or NVS_ARGS_MAX plus the relocation run's. */
enum nvs_status nvs_frame_decode (struct nvs_buffers *buffers, uint32_t length, struct nvs_handles *handles,
                                  struct nvs_call *call, uint32_t *index);

/* What the call left behind, made fit for the caller: handles become tokens, pointers what the caller sent, strings
 * are collected in buffers->strings. `result` is the function's, as it came from the register. Fills the reply;
 * its data are call->data. A reply of more than `capacity` bytes is kept whole, and NVS_STATUS_TOO_LARGE says how large
 * it is. */
void nvs_frame_encode (struct nvs_buffers *buffers, struct nvs_handles *handles, struct nvs_call *call, uint64_t result,
                       uint32_t capacity, struct nvs_reply *reply);

/* The part of the kept reply that FETCH asks for: NVS_STATUS_OK, *part and the length in reply->data_len; or
 * NVS_STATUS_BAD_FRAME where nothing is kept there. */
enum nvs_status nvs_frame_fetch (struct nvs_buffers *buffers, const struct nvs_call *call, uint32_t capacity,
                                 struct nvs_reply *reply, const unsigned char **part);
/* A kept reply is there until the channel's next call. */
void nvs_buffers_forget_reply (struct nvs_buffers *buffers);

#endif
