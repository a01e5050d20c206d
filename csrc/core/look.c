/* SPDX-License-Identifier: Apache-2.0 */
/* What a start asks the kernel and Python has no call for: each in one system call, where a file of /proc, written as text
 * and read again, takes ten times as long. */
#include "core.h"

#include <errno.h>
#include <sys/vfs.h>

#include "worker/syscalls.h"

int
nvs_look_file_system (const char *path, uint64_t *type)
{
    struct statfs fs;

    if (statfs (path, &fs) != 0)
        return errno;
    *type = (uint64_t)fs.f_type;
    return 0;
}

int
nvs_look_capabilities (uint64_t *effective)
{
    struct nvs_caps caps;

    if (nvs_sys_capget (&caps) != 0)
        return errno;
    *effective = caps.effective;
    return 0;
}
