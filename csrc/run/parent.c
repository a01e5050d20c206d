/* SPDX-License-Identifier: Apache-2.0 */
#include "parent.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "cleanup.h"
#include "error.h"

int
nvs_parent_tell (int parent, enum nvs_isolation isolation, int folder, struct nvs_error *error)
{
    static const char path[] = "/proc/self/ns/mnt";
    __attribute__ ((cleanup (nvs_close_fd))) int namespace = -1;
    struct nvs_run_ready ready = { .magic = NVS_RUN_MAGIC, .isolation = (uint32_t)isolation };
    _Alignas (struct cmsghdr) char ancillary[CMSG_SPACE (2 * sizeof (int))] = { 0 };
    struct iovec data = { .iov_base = &ready, .iov_len = sizeof ready };
    struct msghdr header = { .msg_iov = &data, .msg_iovlen = 1 };
    ssize_t rc;
    char answer;
    int err;

    if (folder >= 0) {
        struct cmsghdr *rights;
        int fds[2];

        namespace = open (path, O_RDONLY | O_CLOEXEC);
        if (namespace < 0) {
            err = errno;
            return nvs_fail (error, NVS_STEP_VERIFY, err, path, "the parent cannot be given the mount namespace");
        }
        fds[0] = namespace;
        fds[1] = folder;
        header.msg_control = ancillary;
        header.msg_controllen = sizeof ancillary;
        rights = CMSG_FIRSTHDR (&header);
        rights->cmsg_level = SOL_SOCKET;
        rights->cmsg_type = SCM_RIGHTS;
        rights->cmsg_len = CMSG_LEN (sizeof fds);
        memcpy (CMSG_DATA (rights), fds, sizeof fds);
    }
    do
        rc = sendmsg (parent, &header, MSG_NOSIGNAL);
    while (rc < 0 && errno == EINTR);
    if (rc == (ssize_t)sizeof ready)
        do
            rc = recv (parent, &answer, 1, 0);
        while (rc < 0 && errno == EINTR);
    if (rc != 1) {
        err = rc < 0 ? errno : EPIPE;
        return nvs_fail (error, NVS_STEP_VERIFY, err, NULL, "the parent that is to report is gone");
    }
    return 0;
}
