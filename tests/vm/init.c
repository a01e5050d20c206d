/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The first program of the virtual machine (machine.py), from its initramfs: loads the modules that the rest takes,
 * makes the machine's own root folder the guest's, read-only, executes /mnt/start, and ends the guest. No more is there,
 * so that the guest boots in seconds without anything that virtualises.
 *
 * What it says goes to the serial line, which machine.py shows where a guest brings no result.
 */
#define _GNU_SOURCE 1
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/reboot.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define NEW "/new"
#define P9  "trans=virtio,version=9p2000.L,msize=262144,"

static __attribute__ ((noreturn)) void
end (void)
{
    sync ();
    (void)reboot (RB_AUTOBOOT); /* QEMU ends then: -no-reboot */
    _exit (1);
}

static void
must (long rc, const char *what)
{
    if (rc >= 0)
        return;
    (void)printf ("init: %s: %s\n", what, strerror (errno));
    end ();
}

/* In the order of their names. */
static void
load_modules (void)
{
    for (int i = 0;; i++) {
        char path[32];
        int fd;

        (void)snprintf (path, sizeof path, "/modules/%02d.ko", i);
        fd = open (path, O_RDONLY | O_CLOEXEC);
        if (fd < 0 && errno == ENOENT)
            return;
        must (fd, path);
        must (syscall (SYS_finit_module, fd, "", 0), path);
        (void)close (fd);
    }
}

int
main (void)
{
    static const struct {
        const char *source, *target, *type;
        unsigned long flags;
        const char *options;
    } mounts[] = {
        { "root", NEW, "9p", MS_RDONLY, P9 "cache=loose" },
        { "proc", NEW "/proc", "proc", 0, "" },
        { "sysfs", NEW "/sys", "sysfs", 0, "" },
        { "devtmpfs", NEW "/dev", "devtmpfs", 0, "" },
        { "devpts", NEW "/dev/pts", "devpts", 0, "ptmxmode=0666" },
        { "tmpfs", NEW "/dev/shm", "tmpfs", 0, "mode=1777" },
        { "tmpfs", NEW "/run", "tmpfs", 0, "mode=1777" },
        { "exchange", NEW "/mnt", "9p", 0, P9 "cache=none" },
    };
    pid_t child;
    int status = 0;

    (void)setvbuf (stdout, NULL, _IOLBF, 0);
    load_modules ();
    (void)mkdir (NEW, 0755);
    for (size_t i = 0; i < sizeof mounts / sizeof *mounts; i++) {
        if (strncmp (mounts[i].target, NEW "/dev/", 9) == 0)
            (void)mkdir (mounts[i].target, 0755);
        must (mount (mounts[i].source, mounts[i].target, mounts[i].type, mounts[i].flags, mounts[i].options),
              mounts[i].target);
    }
    must (chdir (NEW), "chdir");
    must (mount (".", "/", NULL, MS_MOVE, NULL), "move to /");
    must (chroot ("."), "chroot");
    must (chdir ("/"), "chdir");

    child = fork ();
    must (child, "fork");
    if (child == 0) {
        (void)setsid ();
        (void)execl ("/bin/sh", "sh", "/mnt/start", (char *)NULL);
        _exit (127);
    }
    for (;;) { /* the first process is the parent of all that lost theirs */
        pid_t pid = wait (&status);

        if (pid == child || (pid < 0 && errno != EINTR))
            break;
    }
    (void)printf ("init: the program ended with status %d\n", status);
    end ();
}
