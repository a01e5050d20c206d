/* SPDX-License-Identifier: Apache-2.0 */
/* A library that looks like NVML to the worker and, initialised there, tries what must not work. It prints a line
 * "name result" for each attempt, where the result is 0 or the errno's name. */
#define _GNU_SOURCE 1
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <unistd.h>

static void
say (const char *name, long rc)
{
    printf ("%s %s\n", name, rc >= 0 ? "0" : strerrorname_np (errno));
    fflush (stdout);
}

static void
try_mknod (const char *name, mode_t type, unsigned int maj, unsigned int min)
{
    char path[64];

    snprintf (path, sizeof path, "/dev/probe-%s", name);
    say (name, mknod (path, type | 0666, makedev (maj, min)));
    unlink (path);
}

static void *
nothing (void *argument)
{
    return argument;
}

static void
try_start (void)
{
    pthread_t thread;
    int status = 0;
    pid_t child = fork ();

    if (child == 0)
        _exit (7);
    say ("fork", child);
    waitpid (child, &status, 0);
    say ("exit-status-7", WEXITSTATUS (status) == 7 ? 0 : -1);
    errno = pthread_create (&thread, NULL, nothing, NULL);
    say ("thread", errno == 0 ? 0 : -1);
    pthread_join (thread, NULL);
    say ("clone-newuser", syscall (SYS_clone, CLONE_NEWUSER | SIGCHLD, 0, 0, 0, 0));
    say ("clone3", syscall (SYS_clone3, NULL, 0));
    say ("execve", execve ("/bin/true", (char *[]){ "true", NULL }, environ));
}

#ifdef __x86_64__
static void
try_foreign (void)
{
    long rc;

    /* i386: mknod is 14. An address below 4 GiB is needed to get as far as the node. */
    __asm__ volatile ("int $0x80" : "=a"(rc) : "0"(20L) : "memory", "r8", "r9", "r10", "r11"); /* getpid */
    errno = (int)-rc;
    say ("i386-getpid", rc);
    rc = syscall (0x40000000 | SYS_getpid);
    say ("x32-getpid", rc);
}
#endif

static void
list (const char *folder)
{
    DIR *entries = opendir (folder);
    struct dirent *entry;

    while (entries != NULL && (entry = readdir (entries)) != NULL) {
        char path[512];
        char target[256] = "";
        struct stat st;

        if (strcmp (entry->d_name, ".") == 0 || strcmp (entry->d_name, "..") == 0)
            continue;
        snprintf (path, sizeof path, "%s/%s", folder, entry->d_name);
        if (lstat (path, &st) != 0)
            continue;
        if (S_ISLNK (st.st_mode) && readlink (path, target, sizeof target - 1) < 0)
            target[0] = '?';
        printf ("dev %s %o %u:%u %u:%u %s\n", path, st.st_mode, st.st_uid, st.st_gid, major (st.st_rdev),
                minor (st.st_rdev), target);
        if (S_ISDIR (st.st_mode))
            list (path);
    }
    if (entries != NULL)
        closedir (entries);
    fflush (stdout);
}

static void
tell_state (void)
{
    struct rlimit core;
    char text[4096] = "";
    int fd = open ("/proc/driver/nvidia/params", O_RDONLY);
    long pipe_fd;

    if (fd >= 0 && read (fd, text, sizeof text - 1) > 0)
        printf ("params %s\n", strstr (text, "ModifyDeviceFiles: 0") != NULL ? "0" : "1");
    close (fd);
    getrlimit (RLIMIT_CORE, &core);
    printf ("core %ld\n", (long)core.rlim_cur);
    printf ("sim %s\n", getenv ("NVSANDBOX_SIM") != NULL ? getenv ("NVSANDBOX_SIM") : "-");
    for (pipe_fd = 0; pipe_fd < 64; pipe_fd++) {
        char link[64];
        char target[256] = "";

        snprintf (link, sizeof link, "/proc/self/fd/%ld", pipe_fd);
        if (readlink (link, target, sizeof target - 1) > 0)
            printf ("fd %ld %s\n", pipe_fd, target);
    }
    fflush (stdout);
}

int
nvmlInit_v2 (void)
{
    if (getenv ("PROBE_SLEEP") != NULL)
        sleep ((unsigned int)atoi (getenv ("PROBE_SLEEP")));
    if (getenv ("PROBE") == NULL)
        return 0;
    tell_state ();
    list ("/dev");
    try_mknod ("nvidia0", S_IFCHR, 195, 0);
    try_mknod ("nvidia7", S_IFCHR, 195, 7);
    try_mknod ("nvidiactl", S_IFCHR, 195, 255);
    try_mknod ("cap", S_IFCHR, 235, 1);
    try_mknod ("cap-high-minor", S_IFCHR, 235, 70000);
    try_mknod ("null", S_IFCHR, 1, 3);
    try_mknod ("disk", S_IFBLK, 8, 0);
    try_mknod ("nvidia-block", S_IFBLK, 195, 0);
    try_mknod ("fifo", S_IFIFO, 0, 0);
    say ("mount", mount ("tmpfs", "/tmp", "tmpfs", 0, NULL));
    say ("umount", umount2 ("/dev", MNT_DETACH));
    say ("unshare", unshare (CLONE_NEWUSER));
    say ("chroot", chroot ("/tmp"));
    say ("inet", socket (AF_INET, SOCK_STREAM, 0));
    say ("netlink", socket (AF_NETLINK, SOCK_RAW, 0));
    say ("unix", socket (AF_UNIX, SOCK_STREAM, 0));
    say ("ptrace", syscall (SYS_ptrace, 0, 0, 0, 0));
    say ("io_uring", syscall (SYS_io_uring_setup, 1, NULL));
    say ("bpf", syscall (SYS_bpf, 0, NULL, 0));
    say ("mount_setattr", syscall (442, -1, "", 0, NULL, 0));
    say ("tiocsti", syscall (SYS_ioctl, 0, 0xffffffff00000000ul | TIOCSTI, "x"));
    say ("open-null", open ("/dev/null", O_RDWR));
    say ("open-urandom", open ("/dev/urandom", O_RDONLY));
    say ("openpt", posix_openpt (O_RDWR | O_NOCTTY));
    say ("write-dev", open ("/dev/probe-file", O_WRONLY | O_CREAT, 0600));
    unlink ("/dev/probe-file");
    say ("write-shm", open ("/dev/shm/probe-file", O_WRONLY | O_CREAT, 0600));
    try_start ();
#ifdef __x86_64__
    try_foreign ();
#endif
    return 0;
}

int
nvmlShutdown (void)
{
    puts ("shutdown 0");
    fflush (stdout);
    if (getenv ("PROBE_SHUTDOWN_SLEEP") != NULL)
        sleep (60);
    return 0;
}
