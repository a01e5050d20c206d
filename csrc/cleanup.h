/* SPDX-License-Identifier: Apache-2.0 */
/* Ownership, said where a variable is declared: __attribute__ ((cleanup (nvs_close_fd))) int fd = -1. They keep errno,
 * for a function may return its last call's failure through them. */
#ifndef NVSANDBOX_CLEANUP_H
#define NVSANDBOX_CLEANUP_H

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <unistd.h>

static inline void
nvs_close_fd (const int *fd)
{
    const int saved = errno;

    if (*fd >= 0)
        (void)close (*fd);
    errno = saved;
}

static inline void
nvs_close_folder (DIR *const *folder)
{
    const int saved = errno;

    if (*folder != NULL)
        (void)closedir (*folder);
    errno = saved;
}

static inline void
nvs_close_file (FILE *const *file)
{
    const int saved = errno;

    if (*file != NULL)
        (void)fclose (*file);
    errno = saved;
}

#endif
