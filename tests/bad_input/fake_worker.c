/* SPDX-License-Identifier: Apache-2.0 */
/* A program in the worker's place that does what the worker never should, by the word in FAKE. */
#define _GNU_SOURCE
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <unistd.h>

#include "protocol.h"

static char packet[NVS_MESSAGE_MAX + 64];

static void
say (const void *message, size_t size)
{
    (void)send (NVS_CONTROL_FD, message, size, MSG_NOSIGNAL);
}

int
main (void)
{
    struct nvs_report report = { .message = { NVS_MAGIC, NVS_MSG_ISOLATED }, .protocol = NVS_PROTOCOL_VERSION };
    const char *mode = getenv ("FAKE");

    if (mode == NULL || strcmp (mode, "exit-at-once") == 0)
        return 7;
    (void)recv (NVS_CONTROL_FD, packet, sizeof packet, 0);
    report.pid = getpid ();
    strcpy (report.build, NVSANDBOX_VERSION);
    if (strcmp (mode, "exit-after-start") == 0)
        return 7;
    if (strcmp (mode, "kill") == 0)
        (void)raise (SIGKILL);
    if (strcmp (mode, "short") == 0)
        say ("hello", 5);
    if (strcmp (mode, "magic") == 0) {
        report.message.magic = 0x12345678;
        say (&report, sizeof report);
    }
    if (strcmp (mode, "type") == 0) {
        report.message.type = 999;
        say (&report, sizeof report);
    }
    if (strcmp (mode, "size") == 0)
        say (&report, sizeof report - 8);
    if (strcmp (mode, "order") == 0) {
        report.message.type = NVS_MSG_READY;
        say (&report, sizeof report);
    }
    if (strcmp (mode, "huge") == 0) {
        memcpy (packet, &report, sizeof report);
        say (packet, sizeof packet);
    }
    /* Some of what it should have done: a namespace; with another file system on its /dev; with the right one. */
    if (strcmp (mode, "same-dev") == 0 || strcmp (mode, "proc-dev") == 0 || strcmp (mode, "no-seccomp") == 0) {
        if (unshare (CLONE_NEWNS) != 0 || mount (NULL, "/", NULL, MS_PRIVATE | MS_REC, NULL) != 0
            || (strcmp (mode, "proc-dev") == 0 && mount ("proc", "/dev", "proc", 0, NULL) != 0)
            || (strcmp (mode, "no-seccomp") == 0 && mount ("tmpfs", "/dev", "tmpfs", 0, NULL) != 0))
            return 8;
        report.seccomp_mode = 2;
        report.no_new_privs = 1;
        say (&report, sizeof report);
    }
    if (strcmp (mode, "isolated") == 0) {
        report.no_new_privs = 0;
        report.dev_fs_magic = 0x01021994;
        report.mount_ns = 12345;
        say (&report, sizeof report);
    }
    for (;;)
        if (recv (NVS_CONTROL_FD, packet, sizeof packet, 0) <= 0)
            return 0;
}
