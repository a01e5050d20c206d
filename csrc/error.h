/* SPDX-License-Identifier: Apache-2.0 */
/* Filling a struct nvs_error. */
#ifndef NVSANDBOX_ERROR_H
#define NVSANDBOX_ERROR_H

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "protocol.h"

/* Returns -1, so that a caller can `return nvs_fail (...)`. Take errno before anything else can overwrite it:
 * `err` is an argument for that reason. `path` may be NULL. */
__attribute__ ((format (printf, 5, 6))) static inline int
nvs_fail (struct nvs_error *error, enum nvs_step step, int err, const char *path, const char *format, ...)
{
    va_list args;

    error->step = (uint32_t)step;
    error->err = err;
    (void)snprintf (error->path, sizeof error->path, "%s", path != NULL ? path : "");
    va_start (args, format);
    (void)vsnprintf (error->detail, sizeof error->detail, format, args);
    va_end (args);
    return -1;
}

#endif
