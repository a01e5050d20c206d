/* SPDX-License-Identifier: Apache-2.0 */
/* Requests as a caller makes them, for tests. */
#ifndef NVSANDBOX_TESTS_BUILD_FRAME_H
#define NVSANDBOX_TESTS_BUILD_FRAME_H

#include <string.h>

#include "../../../csrc/protocol.h"

struct building {
    struct nvs_request request;
    struct nvs_reloc relocs[8];
    _Alignas (NVS_DATA_ALIGN) unsigned char data[16384];
};

static inline void
build_arg (struct building *b, uint32_t kind, uint32_t handle_kind, uint64_t value)
{
    b->request.args[b->request.args_count++] = (struct nvs_arg){ kind, handle_kind, value };
}

static inline void
build_reloc (struct building *b, uint32_t kind, uint32_t handle_kind, uint32_t offset, uint32_t count, uint32_t stride)
{
    b->relocs[b->request.relocs_count++] = (struct nvs_reloc){ kind, handle_kind, offset, count, stride, 0 };
}

static inline void
build_u64 (struct building *b, size_t offset, uint64_t value)
{
    memcpy (b->data + offset, &value, sizeof value);
}

/* Writes the frame and returns its length. */
static inline uint32_t
build_write (const struct building *b, unsigned char *to)
{
    size_t at = sizeof b->request;

    memcpy (to, &b->request, sizeof b->request);
    memcpy (to + at, b->relocs, b->request.relocs_count * sizeof b->relocs[0]);
    at += b->request.relocs_count * sizeof b->relocs[0];
    while (at % NVS_DATA_ALIGN != 0)
        to[at++] = 0;
    memcpy (to + at, b->data, b->request.data_len);
    return (uint32_t)(at + b->request.data_len);
}

static inline void
build_resolve (struct building *b, const char *name)
{
    memset (&b->request, 0, sizeof b->request);
    b->request.op = NVS_OP_RESOLVE;
    b->request.data_len = (uint32_t)strlen (name) + 1;
    memcpy (b->data, name, b->request.data_len);
}

static inline void
build_call (struct building *b, uint32_t function, uint32_t flags, uint32_t data_len)
{
    memset (&b->request, 0, sizeof b->request);
    memset (b->data, 0, data_len);
    b->request.op = NVS_OP_CALL;
    b->request.function = function;
    b->request.flags = flags;
    b->request.data_len = data_len;
}

#endif
