/* SPDX-License-Identifier: Apache-2.0 */
#include "idmap.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cleanup.h"
#include "syscalls.h"

#define MAP_MAX 16384 /* 340 lines at most */

/* The maps of the present namespace with the outer ids replaced by the inner ones: what the process sees as 44 is 44 in
 * the new namespace as well. 0 where that cannot be read. */
static size_t
identity_of (const char *path, char *map, size_t size)
{
    __attribute__ ((cleanup (nvs_close_file))) FILE *file = fopen (path, "re");
    size_t length = 0;
    unsigned int inside;
    unsigned int outside;
    unsigned int count;

    while (file != NULL && fscanf (file, "%u %u %u", &inside, &outside, &count) == 3) {
        int n = snprintf (map + length, size - length, "%u %u %u\n", inside, inside, count);

        if (n < 0 || (size_t)n >= size - length)
            return 0;
        length += (size_t)n;
    }
    return length;
}

/* The kernel takes a map in one write, and once. */
static bool
write_map (pid_t pid, const char *name, const char *map, size_t length)
{
    char path[64];
    __attribute__ ((cleanup (nvs_close_fd))) int fd = -1;

    (void)snprintf (path, sizeof path, "/proc/%d/%s", (int)pid, name);
    fd = open (path, O_WRONLY | O_CLOEXEC);
    return fd >= 0 && write (fd, map, length) == (ssize_t)length;
}

/* What refuses the one refuses the other, so after a uid_map that was refused both are still to be written. */
static _Noreturn void
map_for (pid_t pid, int go, const char *uids, size_t uids_length, const char *gids, size_t gids_length)
{
    char byte;

    if (read (go, &byte, 1) != 1 || !write_map (pid, "uid_map", uids, uids_length))
        _exit (1);
    _exit (write_map (pid, "gid_map", gids, gids_length) ? 0 : 2);
}

void
nvs_id_mapper_start (struct nvs_id_mapper *mapper)
{
    static const uint64_t needed = 1ull << CAP_SETUID | 1ull << CAP_SETGID | 1ull << CAP_SETFCAP;
    static char uids[MAP_MAX];
    static char gids[MAP_MAX];
    struct nvs_caps caps = { 0 };
    size_t uids_length;
    size_t gids_length;
    int ends[2];
    long pid;

    *mapper = (struct nvs_id_mapper){ .go = -1 };
    if (nvs_sys_capget (&caps) != 0 || (caps.effective & needed) != needed)
        return;
    uids_length = identity_of ("/proc/self/uid_map", uids, sizeof uids);
    gids_length = identity_of ("/proc/self/gid_map", gids, sizeof gids);
    if (uids_length == 0 || gids_length == 0 || pipe2 (ends, O_CLOEXEC) != 0)
        return;
    /* Its end sends no signal, as in ladder.c. */
    pid = syscall (SYS_clone, 0ul, NULL, NULL, NULL, NULL);
    if (pid == 0) {
        (void)close (ends[1]);
        map_for (getppid (), ends[0], uids, uids_length, gids, gids_length);
    }
    (void)close (ends[0]);
    if (pid < 0) {
        (void)close (ends[1]);
        return;
    }
    mapper->pid = (pid_t)pid;
    mapper->go = ends[1];
}

bool
nvs_id_mapper_finish (struct nvs_id_mapper *mapper, bool map)
{
    int status = 1;

    if (mapper->pid == 0)
        return false;
    if (map)
        (void)!write (mapper->go, "m", 1);
    (void)close (mapper->go);
    while (waitpid (mapper->pid, &status, __WALL) < 0 && errno == EINTR)
        continue;
    mapper->pid = 0;
    return WIFEXITED (status) && WEXITSTATUS (status) == 0;
}

bool
nvs_ids_are_mapped (void)
{
    __attribute__ ((cleanup (nvs_close_file))) FILE *file = fopen ("/proc/self/gid_map", "re");
    unsigned int inside;
    unsigned int outside;
    unsigned int count = 0;

    return file != NULL && fscanf (file, "%u %u %u", &inside, &outside, &count) == 3 && count > 1;
}
