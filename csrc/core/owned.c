/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A descriptor is a number in a table that belongs to the whole process. A program that makes itself a daemon closes all of
 * them, ours included, and its next file gets a number that we still have. So each of ours is known by what it refers to,
 * and is compared before it is used or closed: another's is never touched. Between the comparison and the use another
 * thread can still exchange it; nothing in Linux closes that gap.
 */
#include "core.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#define PID_FS_MAGIC 0x50494446 /* Linux 6.9; before it all pidfds, eventfds and so on have one inode */

#define GONE -1 /* as the kernel has it once the process has been reaped */

/* Which process a pidfd is for: GONE also where it cannot be told, 0 where that is no pidfd. */
static int32_t
pid_of (int fd)
{
    char text[512];
    char path[64];
    const char *found;
    ssize_t length;
    int pid = 0;
    int info;

    (void)snprintf (path, sizeof path, "/proc/self/fdinfo/%d", fd);
    info = open (path, O_RDONLY | O_CLOEXEC);
    if (info < 0)
        return GONE;
    length = read (info, text, sizeof text - 1);
    (void)close (info);
    if (length <= 0)
        return GONE;
    text[length] = '\0';
    found = strstr (text, "\nPid:");
    return found != NULL && sscanf (found, "\nPid: %d", &pid) == 1 ? pid : 0;
}

void
nvs_owned_take (struct nvs_owned *owned, int fd)
{
    struct statfs fs;
    struct stat st;

    *owned = (struct nvs_owned){ .fd = -1 };
    if (fd < 0 || fstat (fd, &st) != 0)
        return;
    owned->fd = fd;
    owned->device = st.st_dev;
    owned->inode = st.st_ino;
    if (S_ISSOCK (st.st_mode) || (fstatfs (fd, &fs) == 0 && fs.f_type == PID_FS_MAGIC))
        return;
    owned->pid = pid_of (fd);
    if (owned->pid == GONE)
        owned->pid = 0;
}

/* Whether it still is the pidfd that it was, on a kernel where its inode does not tell. Where no process can be told, for
 * ours has been reaped or no descriptor or no /proc is left to ask by, it is: each pidfd is closed after that. */
static int
same_process (const struct nvs_owned *owned)
{
    int32_t pid = owned->pid == 0 ? 0 : pid_of (owned->fd);

    return pid == owned->pid || pid == GONE;
}

int
nvs_owned_here (const struct nvs_owned *owned)
{
    struct stat st;

    return owned->fd >= 0 && fstat (owned->fd, &st) == 0 && st.st_dev == owned->device && st.st_ino == owned->inode
           && same_process (owned);
}

void
nvs_owned_close (struct nvs_owned *owned)
{
    if (nvs_owned_here (owned))
        (void)close (owned->fd);
    owned->fd = -1;
}

int
nvs_owned_pair (int type, struct nvs_owned *ours, struct nvs_owned *theirs)
{
    int ends[2];

    if (socketpair (AF_UNIX, type | SOCK_CLOEXEC, 0, ends) != 0)
        return errno;
    nvs_owned_take (ours, ends[0]);
    nvs_owned_take (theirs, ends[1]);
    return 0;
}

/* 0 when one of the events has come, ETIMEDOUT, or another errno. */
static int
await_event (int fd, short events, int timeout_ms, short *seen)
{
    struct pollfd one = { .fd = fd, .events = events };
    int rc = poll (&one, 1, timeout_ms);

    *seen = one.revents;
    if (rc < 0)
        return errno;
    return rc == 0 ? ETIMEDOUT : 0;
}

int
nvs_owned_send (const struct nvs_owned *owned, const void *bytes, size_t size, int passed, int timeout_ms, size_t *sent)
{
    union {
        struct cmsghdr header;
        char space[CMSG_SPACE (sizeof (int))];
    } rights = { .header = { .cmsg_len = CMSG_LEN (sizeof (int)), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS } };
    struct iovec part = { (void *)(uintptr_t)bytes, size };
    struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1 };
    short seen;
    ssize_t n;
    int err;

    *sent = 0;
    if (!nvs_owned_here (owned))
        return EBADF;
    if (passed >= 0) {
        memcpy (CMSG_DATA (&rights.header), &passed, sizeof passed);
        message.msg_control = rights.space;
        message.msg_controllen = sizeof rights.space;
    }
    n = sendmsg (owned->fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) {
        err = await_event (owned->fd, POLLOUT, timeout_ms, &seen);
        if (err != 0)
            return err;
        n = sendmsg (owned->fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    }
    if (n < 0)
        return errno == EAGAIN ? ETIMEDOUT : errno;
    *sent = (size_t)n;
    return 0;
}

int
nvs_owned_receive (const struct nvs_owned *owned, void *bytes, size_t size, int timeout_ms, size_t *got)
{
    short seen = 0;
    ssize_t n;
    int err;

    *got = 0;
    if (!nvs_owned_here (owned))
        return EBADF;
    err = await_event (owned->fd, POLLIN | POLLRDHUP, timeout_ms, &seen);
    if (err != 0)
        return err;
    n = recv (owned->fd, bytes, size, MSG_DONTWAIT | MSG_TRUNC);
    if (n < 0)
        return errno == EAGAIN ? ETIMEDOUT : errno;
    if ((size_t)n > size)
        return EMSGSIZE;
    /* A packet of no bytes looks like the end of the connection, but for this. */
    if (n == 0 && (seen & (POLLHUP | POLLRDHUP)) == 0)
        return EBADMSG;
    *got = (size_t)n;
    return 0;
}

void
nvs_owned_shut (const struct nvs_owned *owned)
{
    if (nvs_owned_here (owned))
        (void)shutdown (owned->fd, SHUT_WR);
}

void
nvs_await_any (const int32_t *fds, uint32_t count, int timeout_ms)
{
    struct pollfd polled[64];

    if (count > 64)
        count = 64;
    for (uint32_t i = 0; i < count; i++)
        polled[i] = (struct pollfd){ .fd = fds[i], .events = POLLIN };
    (void)poll (polled, count, timeout_ms);
}
