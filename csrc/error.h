/* SPDX-License-Identifier: Apache-2.0 */
/* Filling a struct nvs_error. */
#ifndef NVSANDBOX_ERROR_H
#define NVSANDBOX_ERROR_H

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "protocol.h"

/* What does not fit is cut, and that shows: the text then ends with an ellipsis. */
static inline void
nvs_mark_cut (char *text, size_t size, int wanted)
{
    static const char ellipsis[] = "\xe2\x80\xa6";
    size_t at = size - sizeof ellipsis;

    if (wanted < 0 || (size_t)wanted < size)
        return;
    while (at > 0 && ((unsigned char)text[at] & 0xc0) == 0x80) /* not in the middle of a character of UTF-8 */
        at--;
    memcpy (text + at, ellipsis, sizeof ellipsis);
}

/* Returns -1, so that a caller can `return nvs_fail (...)`. Take errno before anything else can overwrite it:
 * `err` is an argument for that reason. `path` may be NULL. */
__attribute__ ((format (printf, 5, 6))) static inline int
nvs_fail (struct nvs_error *error, enum nvs_step step, int err, const char *path, const char *format, ...)
{
    va_list args;
    int wanted;

    error->step = (uint32_t)step;
    error->err = err;
    wanted = snprintf (error->path, sizeof error->path, "%s", path != NULL ? path : "");
    nvs_mark_cut (error->path, sizeof error->path, wanted);
    va_start (args, format);
    wanted = vsnprintf (error->detail, sizeof error->detail, format, args);
    va_end (args);
    nvs_mark_cut (error->detail, sizeof error->detail, wanted);
    return -1;
}

#endif
