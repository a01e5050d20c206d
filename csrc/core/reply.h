/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The short way's decoder of replies: the one place of the caller's process that looks at what a worker wrote while the
 * worker can still write there. (The marshaller's replies are copied as a whole by nvs_lane_wait, and taken apart in
 * Python.) In a header of its own, so that the hot path has no call more, and the fuzz target has the same code.
 */
#ifndef NVSANDBOX_CORE_REPLY_H
#define NVSANDBOX_CORE_REPLY_H

#include <stdatomic.h>
#include <stdint.h>
#include <string.h>

#include "protocol.h"

enum nvs_answer_kind {
    NVS_ANSWERED,        /* there is a result, and data if any were wanted */
    NVS_NOT_CARRIED_OUT, /* a handle was refused, which is found before the function is called */
    NVS_NO_ANSWER,       /* no worker writes this */
};

#define NVS_ERROR_MEMORY 20 /* NVML_ERROR_MEMORY */

/* Looks at the reply of `length` bytes at `frame` to a request with `data_len` bytes of data. For NVS_ANSWERED fills
 * *result, and *data with where the data lie, `data_len` bytes of them; NULL if there are none.
 *
 * Each field is read once, and nothing in it says where or how much to copy: that is what the caller's own plan says.
 * What lies at *data may change until it is copied, which changes values and nothing else. */
static inline enum nvs_answer_kind
nvs_reply_read (const unsigned char *frame, uint32_t length, uint32_t data_len, int32_t *result,
                const unsigned char **data)
{
    struct nvs_reply reply;

    *data = NULL;
    if (length < sizeof reply)
        return NVS_NO_ANSWER;
    memcpy (&reply, frame, sizeof reply);
    /* The compiler is not to replace the copy by what it was copied from. */
    atomic_signal_fence (memory_order_seq_cst);
    if (reply.status == NVS_STATUS_STALE_HANDLE || reply.status == NVS_STATUS_BAD_HANDLE)
        return NVS_NOT_CARRIED_OUT;
    if (reply.status == NVS_STATUS_NO_MEMORY) {
        *result = NVS_ERROR_MEMORY; /* as the marshaller has it */
        return NVS_ANSWERED;
    }
    if (reply.status != NVS_STATUS_OK || reply.data_len != data_len || reply.strings_len != 0
        || length - sizeof reply != data_len)
        return NVS_NO_ANSWER;
    *result = (int32_t)(uint32_t)reply.result;
    *data = frame + sizeof reply;
    return NVS_ANSWERED;
}

#endif
