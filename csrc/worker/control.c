/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the worker accepts from the caller, and why that is safe: START once, GO once, then OPEN and STOP. START
 * is read before anything is isolated, so everything that it says is checked here, on a private copy, before it is
 * used: sizes against the packet's length, strings against their end. It names paths that the worker opens with the
 * caller's own rights, so it can ask for nothing that the caller could not do itself.
 */
#include "control.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "error.h"

static const uint32_t known_flags = NVS_START_PRIVILEGED | NVS_START_SIMULATED | NVS_START_VERBOSE | NVS_START_DEVICES;

bool
nvs_control_is_socket (int fd)
{
    int domain = 0;
    int type = 0;
    socklen_t length = sizeof domain;

    if (getsockopt (fd, SOL_SOCKET, SO_DOMAIN, &domain, &length) != 0)
        return false;
    length = sizeof type;
    if (getsockopt (fd, SOL_SOCKET, SO_TYPE, &type, &length) != 0)
        return false;
    return domain == AF_UNIX && type == SOCK_SEQPACKET;
}

/* Keeps one descriptor, closes any other: what is not asked for must not pile up here. Returns how many there were. */
static unsigned int
take_descriptors (struct nvs_control *control, struct msghdr *header)
{
    unsigned int count = 0;

    for (struct cmsghdr *c = CMSG_FIRSTHDR (header); c != NULL; c = CMSG_NXTHDR (header, c)) {
        if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
            continue;
        for (size_t at = 0; at + sizeof (int) <= c->cmsg_len - CMSG_LEN (0); at += sizeof (int)) {
            int fd;

            memcpy (&fd, CMSG_DATA (c) + at, sizeof fd);
            if (count++ == 0)
                control->fd = fd;
            else
                (void)close (fd);
        }
    }
    return count;
}

/* Waits for either of the two; 0 means SIGTERM, which wins, so that a caller that floods us cannot hold it off. */
static int
wait_for_packet (const struct nvs_control *control, struct nvs_error *error)
{
    struct pollfd fds[] = {
        { .fd = control->socket, .events = POLLIN },
        { .fd = control->signals, .events = POLLIN },
    };

    while (poll (fds, 2, -1) < 0) {
        int err = errno;

        if (err != EINTR)
            return nvs_fail (error, NVS_STEP_HELLO, err, NULL, "cannot wait for the control socket");
    }
    return fds[1].revents == 0;
}

int
nvs_control_receive (struct nvs_control *control, struct nvs_error *error)
{
    _Alignas (struct cmsghdr) char ancillary[CMSG_SPACE (sizeof (int))];
    struct iovec data = { .iov_base = control->packet, .iov_len = sizeof control->packet };
    struct msghdr header = {
        .msg_iov = &data, .msg_iovlen = 1, .msg_control = ancillary, .msg_controllen = sizeof ancillary
    };
    struct nvs_message message;
    ssize_t got;
    unsigned int count;
    int ready = wait_for_packet (control, error);

    if (ready <= 0)
        return ready;
    if (control->fd >= 0)
        (void)close (nvs_control_take_fd (control)); /* came with a packet that had no use for it */

    do
        got = recvmsg (control->socket, &header, MSG_CMSG_CLOEXEC);
    while (got < 0 && errno == EINTR);
    if (got < 0) {
        int err = errno;

        if (err == ECONNRESET)
            return 0;
        return nvs_fail (error, NVS_STEP_HELLO, err, NULL, "cannot read the control socket");
    }
    count = take_descriptors (control, &header);
    if (got == 0)
        return 0;
    control->length = (size_t)got;
    /* MSG_CTRUNC without any: this process may have no more descriptors, and the kernel dropped what was sent. That is
     * no fault of the caller's; OPEN is refused then. */
    if (count > 1 || (count == 1 && (header.msg_flags & MSG_CTRUNC) != 0))
        return nvs_fail (error, NVS_STEP_HELLO, EMFILE, NULL, "a control packet's descriptors did not all arrive");
    if ((header.msg_flags & MSG_TRUNC) != 0)
        return nvs_fail (error, NVS_STEP_HELLO, EMSGSIZE, NULL, "a control packet is longer than %u bytes",
                         NVS_MESSAGE_MAX);
    if (control->length < sizeof message)
        return nvs_fail (error, NVS_STEP_HELLO, EBADMSG, NULL, "a control packet of %zu bytes has no header",
                         control->length);
    memcpy (&message, control->packet, sizeof message);
    if (message.magic != NVS_MAGIC)
        return nvs_fail (error, NVS_STEP_HELLO, EBADMSG, NULL, "a control packet starts with %#x, not with %#x",
                         message.magic, NVS_MAGIC);
    return 1;
}

enum nvs_message_type
nvs_control_type (const struct nvs_control *control)
{
    struct nvs_message message;

    memcpy (&message, control->packet, sizeof message);
    return (enum nvs_message_type)message.type;
}

int
nvs_control_take_fd (struct nvs_control *control)
{
    int fd = control->fd;

    control->fd = -1;
    return fd;
}

int
nvs_control_send (const struct nvs_control *control, enum nvs_message_type type, void *message, size_t size)
{
    struct nvs_message header = { .magic = NVS_MAGIC, .type = (uint32_t)type };
    ssize_t sent;

    memcpy (message, &header, sizeof header);
    do
        sent = send (control->socket, message, size, MSG_NOSIGNAL);
    while (sent < 0 && errno == EINTR);
    return sent == (ssize_t)size ? 0 : -1;
}

/* The strings behind START, cut at their NULs. There must be exactly as many as announced. */
static int
split_strings (struct nvs_options *options, uint32_t length, struct nvs_error *error)
{
    uint32_t expected = 3 + options->libraries_count;
    uint32_t count = 0;

    if (length == 0 || options->text[length - 1] != '\0')
        return nvs_fail (error, NVS_STEP_HELLO, EBADMSG, NULL, "the strings of START do not end with a NUL");
    for (uint32_t at = 0; at < length; at += (uint32_t)strlen (options->text + at) + 1, count++) {
        const char *string = options->text + at;

        if (count == 0)
            options->driver_root = string;
        else if (count == 1)
            options->dev_root = string;
        else if (count == 2)
            options->simulator = string;
        else if (count < expected)
            options->libraries[count - 3] = string;
    }
    if (count != expected)
        return nvs_fail (error, NVS_STEP_HELLO, EBADMSG, NULL, "START announces %u strings and has %u", expected,
                         count);
    return 0;
}

int
nvs_control_parse_start (const struct nvs_control *control, struct nvs_options *options, struct nvs_error *error)
{
    struct nvs_start start = { 0 };
    const size_t fixed = offsetof (struct nvs_start, isolation);

    if (nvs_control_type (control) != NVS_MSG_START)
        return nvs_fail (error, NVS_STEP_HELLO, EBADMSG, NULL, "the first control packet is of type %u, not START",
                         (unsigned int)nvs_control_type (control));

    /* Who is it: these fields lie where they are in every version, and what follows may not. */
    if (control->length < fixed)
        return nvs_fail (error, NVS_STEP_HELLO, EBADMSG, NULL, "START has %zu bytes only", control->length);
    memcpy (&start, control->packet, fixed);
    start.build[sizeof start.build - 1] = '\0';
    if (start.protocol != NVS_PROTOCOL_VERSION || strcmp (start.build, NVSANDBOX_VERSION) != 0)
        return nvs_fail (error, NVS_STEP_HELLO, EPROTO, NULL,
                         "the worker is of version %s (protocol %u), its caller of version %s (protocol %u): "
                         "files of two installations are mixed, so reinstall nvsandbox",
                         NVSANDBOX_VERSION, NVS_PROTOCOL_VERSION, start.build, start.protocol);

    if (control->length < sizeof start)
        return nvs_fail (error, NVS_STEP_HELLO, EBADMSG, NULL, "START has %zu bytes only", control->length);
    memcpy (&start, control->packet, sizeof start);
    if (start.strings_len != control->length - sizeof start)
        return nvs_fail (error, NVS_STEP_HELLO, EBADMSG, NULL, "START announces %u bytes of strings and has %zu",
                         start.strings_len, control->length - sizeof start);
    if (start.isolation < NVS_ISOLATION_MOUNT || start.isolation > NVS_ISOLATION_GUARD)
        return nvs_fail (error, NVS_STEP_HELLO, EINVAL, NULL, "isolation %u is unknown", start.isolation);
    if ((start.flags & ~known_flags) != 0)
        return nvs_fail (error, NVS_STEP_HELLO, EINVAL, NULL, "flags %#x are unknown", start.flags & ~known_flags);
    if (start.devices_count > NVS_DEVICES_MAX)
        return nvs_fail (error, NVS_STEP_HELLO, EINVAL, NULL, "%u devices are more than %u", start.devices_count,
                         NVS_DEVICES_MAX);
    if (start.libraries_count == 0 || start.libraries_count > NVS_LIBRARIES_MAX)
        return nvs_fail (error, NVS_STEP_HELLO, EINVAL, NULL, "%u libraries to try; from 1 to %u is possible",
                         start.libraries_count, NVS_LIBRARIES_MAX);

    options->isolation = (enum nvs_isolation)start.isolation;
    options->flags = start.flags;
    options->devices_count = start.devices_count;
    memcpy (options->device_minors, start.device_minors, sizeof options->device_minors);
    options->libraries_count = start.libraries_count;
    options->spinning_max = start.spinning_max;
    memcpy (options->text, control->packet + sizeof start, start.strings_len);
    if (split_strings (options, start.strings_len, error) != 0)
        return -1;
    if (options->isolation != NVS_ISOLATION_GUARD && options->dev_root[0] != '/')
        return nvs_fail (error, NVS_STEP_HELLO, EINVAL, options->dev_root, "the dev root is not an absolute path");
    return 0;
}

int
nvs_control_parse_open (const struct nvs_control *control, struct nvs_open *open_, struct nvs_error *error)
{
    if (control->length != sizeof *open_)
        return nvs_fail (error, NVS_STEP_CHANNEL, EBADMSG, NULL, "OPEN has %zu bytes, not %zu", control->length,
                         sizeof *open_);
    memcpy (open_, control->packet, sizeof *open_);
    return 0;
}
