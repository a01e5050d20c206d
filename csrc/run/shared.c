/* SPDX-License-Identifier: Apache-2.0 */
#include "shared.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "error.h"

/* The host's folder under the same name. 0, or an errno, and then there is an empty folder. */
static int
bind_folder (const struct nvs_devtree *tree, const char *name, mode_t mode, struct nvs_error *error)
{
    char from[64];
    char to[64];

    (void)snprintf (from, sizeof from, "/proc/self/fd/%d/%s", tree->old, name);
    (void)snprintf (to, sizeof to, "/dev/%s", name);
    if (nvs_devtree_folder (tree, name, mode, error) != 0)
        return -1;
    return mount (from, to, NULL, MS_BIND, NULL) == 0 ? 0 : errno;
}

static bool
old_is (const struct nvs_devtree *tree, const char *name, mode_t type, int flags)
{
    struct stat st;

    return tree->old >= 0 && fstatat (tree->old, name, &st, flags) == 0 && (st.st_mode & S_IFMT) == type;
}

/* Opening the node of number 5:2 gives a terminal of the devpts that is mounted beside it. In a user namespace it cannot
 * be made, and a bound one is not beside anything, so that only the multiplexer in the devpts itself is left. */
static int
multiplexer (const struct nvs_devtree *tree, struct nvs_error *error)
{
    if (old_is (tree, "ptmx", S_IFCHR, AT_SYMLINK_NOFOLLOW) && !tree->bind_only
        && mknodat (tree->dev, "ptmx", S_IFCHR | 0666, makedev (5, 2)) == 0)
        return 0;
    return nvs_devtree_link (tree, "ptmx", "pts/ptmx", error);
}

static bool
has_terminal (void)
{
    return isatty (STDIN_FILENO) == 1 || isatty (STDOUT_FILENO) == 1 || isatty (STDERR_FILENO) == 1;
}

/* The host's terminals, so that the program finds the one it is at, under its name. Where that has no multiplexer for us
 * and there is no terminal to be found, a new set of terminals is of more use. */
static int
terminals (const struct nvs_devtree *tree, struct nvs_error *error)
{
    struct stat st;
    /* By its mode: here there are capabilities of a namespace that the program will not have. */
    bool usable = !tree->bind_only
                  || (tree->old >= 0 && fstatat (tree->old, "pts/ptmx", &st, 0) == 0 && (st.st_mode & 0006) == 0006);
    int rc = ENOENT;

    if (usable || has_terminal ())
        rc = bind_folder (tree, "pts", 0755, error);
    else if (nvs_devtree_folder (tree, "pts", 0755, error) != 0)
        rc = -1;
    if (rc < 0)
        return -1;
    if (rc > 0)
        (void)mount ("devpts", "/dev/pts", "devpts", MS_NOSUID | MS_NOEXEC, "newinstance,ptmxmode=0666,mode=0620");
    return multiplexer (tree, error);
}

/* A terminal that is no pseudo-terminal (tty1, ttyS0), or a pseudo-terminal that a container engine has put at
 * /dev/console: bound, for ttyname() compares inodes. */
static void
own_terminal (const struct nvs_devtree *tree, int fd)
{
    char link[64];
    char name[PATH_MAX];
    const char *names[] = { NULL, "console" };
    struct stat here;
    struct stat there;
    ssize_t length;

    (void)snprintf (link, sizeof link, "/proc/self/fd/%d", fd);
    if (isatty (fd) != 1 || fstat (fd, &here) != 0)
        return;
    length = readlink (link, name, sizeof name - 1);
    if (length > 0) {
        name[length] = '\0';
        if (strncmp (name, "/dev/", 5) == 0 && strchr (name + 5, '/') == NULL)
            names[0] = name + 5;
    }
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (names[i] != NULL && fstatat (tree->old, names[i], &there, 0) == 0 && there.st_ino == here.st_ino
            && there.st_dev == here.st_dev && faccessat (tree->dev, names[i], F_OK, AT_SYMLINK_NOFOLLOW) != 0)
            (void)nvs_devtree_bind (tree, names[i]);
    }
}

/* The host's where it has them, for they are how processes talk to each other: a private /dev/shm would cut CUDA's, NCCL's
 * and everybody's shared memory between the program and those outside. No device nodes can be in them where the host
 * mounts them with nodev, as all do. */
static int
shared_memory (const struct nvs_devtree *tree, struct nvs_error *error)
{
    static const char *const others[] = { "mqueue", "hugepages" };
    int rc = ENOENT;

    if (old_is (tree, "shm", S_IFDIR, 0))
        rc = bind_folder (tree, "shm", 01777, error);
    else if (nvs_devtree_folder (tree, "shm", 01777, error) != 0)
        rc = -1;
    if (rc < 0)
        return -1;
    /* Bounded, as all that is ours: the default would be half of the machine's memory. */
    if (rc > 0)
        (void)mount ("tmpfs", "/dev/shm", "tmpfs", MS_NOSUID | MS_NODEV | MS_NOEXEC, "mode=1777,size=64m");
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (old_is (tree, others[i], S_IFDIR, 0) && bind_folder (tree, others[i], 0755, error) < 0)
            return -1;
    return 0;
}

/* The system's log: a socket, or a link to where it is. */
static void
log_socket (const struct nvs_devtree *tree)
{
    char target[PATH_MAX];
    ssize_t length;

    if (old_is (tree, "log", S_IFSOCK, AT_SYMLINK_NOFOLLOW)) {
        (void)nvs_devtree_bind (tree, "log");
        return;
    }
    length = readlinkat (tree->old, "log", target, sizeof target - 1);
    if (length <= 0)
        return;
    target[length] = '\0';
    (void)symlinkat (target, tree->dev, "log");
}

int
nvs_shared_base (const struct nvs_devtree *tree, struct nvs_error *error)
{
    if (nvs_devtree_nodes (tree, error) != 0 || terminals (tree, error) != 0 || shared_memory (tree, error) != 0)
        return -1;
    if (tree->old < 0)
        return 0;
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++)
        own_terminal (tree, fd);
    log_socket (tree);
    return 0;
}
