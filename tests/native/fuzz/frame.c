/* SPDX-License-Identifier: Apache-2.0 */
/* The frame decoder on anything, and what is kept for it. A frame that it accepts and that nobody then touched comes back as it was. */
#include <stdlib.h>
#include <string.h>

#include "../../../csrc/worker/frame.h"

int LLVMFuzzerTestOneInput (const uint8_t *input, size_t size);

int
LLVMFuzzerTestOneInput (const uint8_t *input, size_t size)
{
    static struct nvs_handles *handles;
    struct nvs_buffers buffers = { 0 };
    struct nvs_reply reply;
    struct nvs_call call;
    uint64_t token;
    uint32_t index;

    if (handles == NULL) {
        handles = nvs_handles_new (0); /* the corpus holds tokens of this generation */
        for (uint64_t i = 0; i < 4; i++)
            if (nvs_handles_intern (handles, 0x1000 + i, 1, &token) < 0)
                abort ();
    }
    if (size > NVS_LANE_FRAME)
        return 0;
    /* Just as large as the frame, so that the address sanitizer sees a read behind its end. */
    buffers.frame = malloc (size > 0 ? size : 1);
    if (buffers.frame == NULL)
        abort ();
    buffers.frame_size = size;
    if (size > 0)
        memcpy (buffers.frame, input, size);
    if (nvs_frame_decode (&buffers, (uint32_t)size, handles, &call, &index) != NVS_STATUS_OK) {
        if (size > 0 && memcmp (buffers.frame, input, size) != 0)
            abort ();
    } else if ((call.request->flags & NVS_CALL_RETIRES) == 0) {
        /* What FETCH asks for is inside of what is kept, whatever the frame says; here that is the frame itself. */
        const unsigned char *part = NULL;

        buffers.kept = malloc (size);
        if (buffers.kept == NULL)
            abort ();
        buffers.kept_len = size;
        memset (&reply, 0, sizeof reply);
        if (nvs_frame_fetch (&buffers, &call, sizeof reply + 64, &reply, &part) == NVS_STATUS_OK)
            for (uint32_t i = 0; i < reply.data_len; i++)
                (void)*(const volatile unsigned char *)(part + i);
        nvs_frame_encode (&buffers, handles, &call, 0, NVS_FRAME_MAX, &reply);
        if (reply.status != NVS_STATUS_OK || memcmp (buffers.frame, input, size) != 0)
            abort ();
    }
    nvs_buffers_free (&buffers);
    return 0;
}
