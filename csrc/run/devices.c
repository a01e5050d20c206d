/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A program that is nobody's NVML client alone looks for more in /dev than NVML does: generators of CDI specs and device
 * plugins for /dev/dri with its links by path, gdrdrv, nvidia-fs and InfiniBand, exporters for /dev/kmsg. In a /dev
 * without them such a program does not fail: it writes a spec that is incomplete. What NVML can create is not for this
 * file, for that is what the private /dev is for.
 */
#include "devices.h"

#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "cleanup.h"

#define SHOWN_MAX 512u /* each may take a mount */

/* mem, kmem and port, but neither kmsg nor what every /dev has; terminals, of which the present one is there already. */
static bool
is_left_out (dev_t device)
{
    const unsigned int number = major (device);

    if (number == 1)
        return minor (device) <= 4;
    return number == 4                          /* tty1, ttyS0 */
           || number == 5                       /* tty, console, ptmx */
           || number == 7                       /* vcs */
           || (number >= 136 && number <= 143); /* pseudo-terminals, as container engines bind them to console */
}

static bool
is_directory_of_disks (const char *name)
{
    return strcmp (name, "block") == 0 || strcmp (name, "disk") == 0 || strcmp (name, "mapper") == 0;
}

/* A relative one: what an absolute one means depends on where the dev root is. */
static void
show_link (const struct nvs_devtree *tree, const char *name)
{
    char target[PATH_MAX];
    ssize_t length = readlinkat (tree->root, name, target, sizeof target - 1);

    if (length <= 0)
        return;
    target[length] = '\0';
    if (target[0] != '/')
        (void)symlinkat (target, tree->dev, name);
}

/* Whether something was shown. */
static bool
show (const struct nvs_devtree *tree, const char *name, bool drm)
{
    struct nvs_node node = { .target = "" };
    struct stat st;

    if (strlen (name) >= sizeof node.name || nvs_devtree_is_nvmls (name)
        || faccessat (tree->dev, name, F_OK, AT_SYMLINK_NOFOLLOW) == 0
        || fstatat (tree->root, name, &st, AT_SYMLINK_NOFOLLOW) != 0)
        return false;
    if (S_ISLNK (st.st_mode)) {
        show_link (tree, name);
        return true;
    }
    if (S_ISDIR (st.st_mode))
        return !is_directory_of_disks (name) && (drm || strcmp (name, "dri") != 0)
               && nvs_devtree_bind_folder (tree, tree->root, name) == 0;
    if (!S_ISCHR (st.st_mode) || is_left_out (st.st_rdev))
        return false;
    memcpy (node.name, name, strlen (name) + 1);
    node.mode = st.st_mode;
    node.uid = st.st_uid;
    node.gid = st.st_gid;
    node.device = st.st_rdev;
    return nvs_devtree_show (tree, &node);
}

void
nvs_show_other_devices (const struct nvs_devtree *tree, bool drm)
{
    __attribute__ ((cleanup (nvs_close_folder))) DIR *entries = NULL;
    const struct dirent *entry;
    unsigned int shown = 0;
    int fd = openat (tree->root, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);

    if (fd < 0)
        return;
    if ((entries = fdopendir (fd)) == NULL) {
        (void)close (fd);
        return;
    }
    while (shown < SHOWN_MAX && (entry = readdir (entries)) != NULL)
        if (entry->d_name[0] != '.')
            shown += show (tree, entry->d_name, drm);
}
