/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A library that looks like NVML to the worker and tries, from inside it, what a library that means harm would try.
 *
 * nvmlSystemGetProcessName(n) makes the n-th attempt and gives back "row<TAB>attempt<TAB>result" as the name: 0 for
 * success, else the errno. The rows are those of the table in docs/security.md. Each attempt is made in a worker of its own, so
 * that no success spoils the next one.
 *
 * No attempt does harm where it succeeds: signal 0, limits as they are, opening and not writing.
 *
 * The environment tells the targets: HOSTILE_FOLDER (the caller's, with file, socket and setuid-program in it),
 * HOSTILE_BYSTANDER and HOSTILE_OTHER (pids: a process of the same user without capabilities, another session's
 * worker), HOSTILE_SHM (the id of a shared memory segment), HOSTILE_ABSTRACT (a socket's name), HOSTILE_TERMINAL (the path
 * of a terminal of the user's).
 */
#define _GNU_SOURCE 1
#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <linux/fs.h>
#include <linux/securebits.h>
#include <linux/sockios.h>
#include <mqueue.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/shm.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

/* Newer than the headers of some systems; the same on all architectures. */
#define NR_OPEN_TREE      428
#define NR_MOVE_MOUNT     429
#define NR_FSOPEN         430
#define NR_PIDFD_OPEN     434
#define NR_PIDFD_SIGNAL   424
#define NR_PIDFD_GETFD    438
#define NR_MADVISE        440
#define NR_MOUNT_SETATTR  442
#define NR_IO_URING_SETUP 425

static pid_t caller;
static pid_t bystander;
static pid_t other;
static const char *folder;

static int
failed (long rc)
{
    return rc >= 0 ? 0 : errno;
}

/* The last four paths stay valid. */
static char *
at (const char *base, const char *name)
{
    static char paths[4][512];
    static unsigned int turn;
    char *path = paths[turn++ % 4];

    (void)snprintf (path, sizeof paths[0], "%s/%s", base, name);
    return path;
}

static char *
of_process (pid_t pid, const char *name)
{
    char base[32];

    (void)snprintf (base, sizeof base, "/proc/%d", (int)pid);
    return at (base, name);
}

static int
can_open (const char *path, int flags)
{
    return failed (open (path, flags | O_CLOEXEC | O_NOCTTY | O_NONBLOCK, 0600));
}

/* ---- mounts and namespaces */

static int
mount_tmpfs (void)
{
    return failed (mount ("tmpfs", folder, "tmpfs", 0, NULL));
}

static int
mount_bind (void)
{
    return failed (mount ("/proc", folder, NULL, MS_BIND, NULL));
}

static int
mount_writable (void)
{
    return failed (mount (NULL, "/dev", NULL, MS_REMOUNT | MS_BIND, NULL));
}

static int
mount_umount (void)
{
    return failed (umount2 ("/dev", MNT_DETACH));
}

static int
mount_umount_shm (void)
{
    return failed (umount2 ("/dev/shm", MNT_DETACH));
}

static int
mount_tree (void)
{
    return failed (syscall (NR_OPEN_TREE, AT_FDCWD, "/proc", 1));
}

static int
mount_fsopen (void)
{
    return failed (syscall (NR_FSOPEN, "tmpfs", 0));
}

static int
mount_move (void)
{
    return failed (syscall (NR_MOVE_MOUNT, AT_FDCWD, "/dev/shm", AT_FDCWD, folder, 0));
}

static int
mount_setattr_call (void)
{
    uint64_t attributes[4] = { 0, 1, 0, 0 };

    return failed (syscall (NR_MOUNT_SETATTR, AT_FDCWD, "/dev", 0, attributes, sizeof attributes));
}

static int
root_pivot (void)
{
    return failed (syscall (SYS_pivot_root, folder, folder));
}

static int
root_change (void)
{
    return failed (chroot (folder));
}

static const int spaces[] = { CLONE_NEWNS,  CLONE_NEWUSER, CLONE_NEWPID,    CLONE_NEWNET,
                              CLONE_NEWIPC, CLONE_NEWUTS,  CLONE_NEWCGROUP, 0x80 /* time */ };
#define SPACES (sizeof spaces / sizeof *spaces)

static int
space_unshare (void)
{
    for (size_t i = 0; i < SPACES; i++)
        if (unshare (spaces[i]) == 0)
            return 0;
    return errno;
}

static int
space_clone (void)
{
    long child = -1;

    for (size_t i = 0; i + 1 < SPACES && child < 0; i++) /* clone has no flag for time */
        child = syscall (SYS_clone, spaces[i] | SIGCHLD, 0, 0, 0, 0);
    if (child == 0)
        _exit (0);
    return failed (child);
}

static int
space_clone3 (void)
{
    struct {
        uint64_t flags, pidfd, child_tid, parent_tid, exit_signal, stack, stack_size, tls;
    } arguments = { .flags = CLONE_NEWUSER, .exit_signal = SIGCHLD };
    long child = syscall (435, &arguments, sizeof arguments);

    if (child == 0)
        _exit (0);
    return failed (child);
}

static int
enter (pid_t pid)
{
    static const char *const names[] = { "ns/mnt", "ns/user", "ns/net", "ns/pid", "ns/ipc", "ns/uts" };

    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        int fd = open (of_process (pid, names[i]), O_RDONLY | O_CLOEXEC);

        if (fd >= 0 && setns (fd, 0) == 0)
            return 0;
    }
    return errno;
}

static int
space_of_caller (void)
{
    return enter (caller);
}

static int
space_of_init (void)
{
    return enter (1);
}

static int
space_of_pidfd (void)
{
    return failed (setns ((int)syscall (NR_PIDFD_OPEN, caller, 0), CLONE_NEWNS));
}

/* ---- device nodes */

static int
make (const char *base, mode_t type, unsigned int major_number, unsigned int minor_number)
{
    char *path = at (base, "hostile-node");
    int rc = mknod (path, type | 0600, makedev (major_number, minor_number));
    int err = errno;

    if (rc == 0)
        (void)unlink (path);
    return rc == 0 ? 0 : err;
}

static int
foreign_nodes (const char *base)
{
    static const struct {
        mode_t type;
        unsigned int major_number, minor_number;
    } nodes[] = { { S_IFBLK, 8, 0 },   { S_IFCHR, 1, 1 }, { S_IFCHR, 10, 232 },
                  { S_IFBLK, 195, 0 }, { S_IFCHR, 5, 1 }, { S_IFBLK, 259, 0 } };
    int err = 0;

    for (size_t i = 0; i < sizeof nodes / sizeof *nodes; i++)
        if ((err = make (base, nodes[i].type, nodes[i].major_number, nodes[i].minor_number)) == 0)
            return 0;
    return err;
}

static int
node_foreign_in_dev (void)
{
    return foreign_nodes ("/dev");
}

static int
node_foreign_in_shm (void)
{
    return foreign_nodes ("/dev/shm");
}

static int
node_foreign_elsewhere (void)
{
    return foreign_nodes (folder);
}

static int
node_foreign_and_open (void)
{
    char *path = at (folder, "hostile-disk");

    if (syscall (SYS_mknodat, AT_FDCWD, path, S_IFBLK | 0600, (unsigned int)makedev (8, 0)) != 0)
        return errno;
    (void)unlink (path);
    return 0;
}

static int
node_own_in_dev (void)
{
    return make ("/dev", S_IFCHR, 195, 0);
}

static int
node_own_elsewhere (void)
{
    return make (folder, S_IFCHR, 195, 0);
}

static int
node_own_at_bystanders (void)
{
    return make (of_process (bystander, "root/dev"), S_IFCHR, 195, 0);
}

/* ---- the host's devices and /dev */

static int
device_in_dev_read (void)
{
    return can_open ("/dev/other-device", O_RDONLY);
}

static int
device_in_dev_write (void)
{
    return can_open ("/dev/other-device", O_RDWR);
}

static int
device_of_caller (void)
{
    return can_open (of_process (caller, "root/dev/other-device"), O_RDONLY);
}

static int
device_of_caller_write (void)
{
    return can_open (of_process (caller, "root/dev/other-device"), O_RDWR);
}

static int
device_of_bystander (void)
{
    return can_open (of_process (bystander, "root/dev/other-device"), O_RDONLY);
}

static int
device_of_bystander_write (void)
{
    return can_open (of_process (bystander, "root/dev/other-device"), O_RDWR);
}

static int
device_mem (void)
{
    return can_open ("/dev/mem", O_RDONLY);
}

/* Every way of making, changing and removing a name in a folder that holds a node other-device. */
static int
names (const char *base)
{
    char *path = at (base, "hostile-name");
    char *device = at (base, "other-device");
    int fd;

    if (mkdir (path, 0700) == 0) {
        (void)rmdir (path);
        return 0;
    }
    if ((fd = open (path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600)) >= 0 || mknod (path, S_IFIFO | 0600, 0) == 0
        || symlink ("null", path) == 0 || link (device, path) == 0) {
        (void)unlink (path);
        return 0;
    }
    if (rename (device, path) == 0) {
        (void)rename (path, device);
        return 0;
    }
    return failed (chmod (device, 0600));
}

static int
names_in_dev (void)
{
    /* The host's, where this node is to be seen. */
    return access ("/dev/other-device", F_OK) == 0 ? names ("/dev") : errno;
}

static int
names_of_caller (void)
{
    return names (of_process (caller, "root/dev"));
}

static int
names_of_bystander (void)
{
    return names (of_process (bystander, "root/dev"));
}

static int
names_in_bystanders_folder (void)
{
    return names (of_process (bystander, "cwd"));
}

static int
names_of_init (void)
{
    /* Only whether it can be reached: it is the machine's own. */
    return can_open ("/proc/1/root/dev", O_PATH | O_DIRECTORY);
}

static int
names_in_private_dev (void)
{
    char *path = at ("/dev", "hostile-folder");
    int rc = mkdir (path, 0700);
    int err = errno;

    if (rc == 0)
        (void)rmdir (path);
    return rc == 0 ? 0 : err;
}

/* ---- files */

static int
file_read (void)
{
    return can_open (at (folder, "file"), O_RDONLY);
}

static int
file_write (void)
{
    return can_open (at (folder, "file"), O_WRONLY);
}

static int
file_truncate (void)
{
    return failed (truncate (at (folder, "file"), 4));
}

static int
made (int rc)
{
    int err = errno;

    (void)unlink (at (folder, "hostile"));
    return rc >= 0 ? 0 : err;
}

static int
file_create (void)
{
    return made (open (at (folder, "hostile"), O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
}

static int
file_openat2 (void)
{
    uint64_t how[3] = { O_WRONLY | O_CREAT, 0600, 0 };

    return made ((int)syscall (437, AT_FDCWD, at (folder, "hostile"), how, sizeof how));
}

static int
file_mkdir (void)
{
    int rc = mkdir (at (folder, "hostile-folder"), 0700);
    int err = errno;

    (void)rmdir (at (folder, "hostile-folder"));
    return rc == 0 ? 0 : err;
}

static int
file_fifo (void)
{
    return made (mknod (at (folder, "hostile"), S_IFIFO | 0600, 0));
}

static int
file_symlink (void)
{
    return made (symlink ("file", at (folder, "hostile")));
}

static int
file_link (void)
{
    return made (link (at (folder, "file"), at (folder, "hostile")));
}

static int
file_rename (void)
{
    int rc = rename (at (folder, "file"), at (folder, "hostile"));
    int err = errno;

    if (rc == 0)
        (void)rename (at (folder, "hostile"), at (folder, "file"));
    return rc == 0 ? 0 : err;
}

static int
file_unlink (void)
{
    return failed (unlink (at (folder, "spare")));
}

static int
file_rmdir (void)
{
    return failed (rmdir (at (folder, "spare-folder")));
}

static int
file_tmpfile (void)
{
    return failed (open (folder, O_TMPFILE | O_WRONLY | O_CLOEXEC, 0600));
}

static int
file_socket (void)
{
    struct sockaddr_un name = { .sun_family = AF_UNIX };

    (void)snprintf (name.sun_path, sizeof name.sun_path, "%.90s/hostile", folder);
    return made (bind (socket (AF_UNIX, SOCK_STREAM, 0), (struct sockaddr *)&name, sizeof name));
}

static int
mode_change (void)
{
    return failed (chmod (at (folder, "file"), 0600));
}

static int
mode_owner (void)
{
    return failed (chown (at (folder, "file"), getuid (), getgid ()));
}

static int
mode_times (void)
{
    return failed (utimensat (AT_FDCWD, at (folder, "file"), NULL, 0));
}

static int
setuid_file (void)
{
    return failed (chmod (at (folder, "file"), 04700));
}

static int
setuid_descriptor (void)
{
    return failed (fchmod (open (at (folder, "file"), O_RDONLY | O_CLOEXEC), 02700));
}

static int
setuid_at (void)
{
    return failed (syscall (SYS_fchmodat, AT_FDCWD, at (folder, "file"), 04700));
}

static int
setuid_at2 (void)
{
    return failed (syscall (452, AT_FDCWD, at (folder, "file"), 04700, 0));
}

static int
kernel_core_pattern (void)
{
    return can_open ("/proc/sys/kernel/core_pattern", O_WRONLY);
}

static int
kernel_modprobe (void)
{
    return can_open ("/proc/sys/kernel/modprobe", O_WRONLY);
}

static int
kernel_sysrq (void)
{
    return can_open ("/proc/sysrq-trigger", O_WRONLY);
}

static int
kernel_sys (void)
{
    static const char *const paths[] = { "/sys/kernel/mm/transparent_hugepage/enabled", "/sys/kernel/rcu_expedited",
                                         "/sys/power/state", "/sys/bus/pci/rescan" };
    int err = ENOENT;

    for (size_t i = 0; i < sizeof paths / sizeof *paths && err != 0; i++)
        err = can_open (paths[i], O_WRONLY);
    return err;
}

/* ---- other processes */

static int
memory_of (pid_t pid)
{
    if (open (of_process (pid, "mem"), O_RDWR | O_CLOEXEC) >= 0
        || open (of_process (pid, "mem"), O_RDONLY | O_CLOEXEC) >= 0)
        return 0;
    return errno;
}

static int
memory_file (void)
{
    return memory_of (caller);
}

static int
memory_maps (void)
{
    char text[64];
    int fd = open (of_process (caller, "maps"), O_RDONLY | O_CLOEXEC);

    return fd >= 0 && read (fd, text, sizeof text) > 0 ? 0 : errno;
}

static int
memory_environ (void)
{
    return can_open (of_process (caller, "environ"), O_RDONLY);
}

static int
memory_readv (void)
{
    char here[8];
    struct iovec to = { here, sizeof here };
    struct iovec from = { (void *)0x400000, sizeof here };

    /* EFAULT too would mean that it was allowed. */
    return process_vm_readv (caller, &to, 1, &from, 1, 0) >= 0 || errno == EFAULT ? 0 : errno;
}

static int
memory_writev (void)
{
    char here[1] = "";
    struct iovec from = { here, sizeof here };
    struct iovec to = { NULL, sizeof here };

    return process_vm_writev (caller, &from, 1, &to, 1, 0) >= 0 || errno == EFAULT ? 0 : errno;
}

static int
memory_trace (void)
{
    if (ptrace (PTRACE_SEIZE, caller, 0, 0) == 0)
        return 0; /* the tracer's end lets it go */
    return errno;
}

static int
memory_advise (void)
{
    struct iovec range = { NULL, 4096 };
    long fd = syscall (NR_PIDFD_OPEN, caller, 0);

    return failed (syscall (NR_MADVISE, fd, &range, 1, MADV_COLD, 0));
}

static int
memory_pages (void)
{
    void *pages[1] = { (void *)0x400000 };
    int status[1];

    return failed (syscall (SYS_move_pages, caller, 1, pages, NULL, status, 0));
}

static int
descriptor_of (pid_t pid)
{
    int err = ENOENT;

    for (int n = 0; n < 64; n++) {
        char name[16];

        (void)snprintf (name, sizeof name, "fd/%d", n);
        if (open (of_process (pid, name), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY) >= 0)
            return 0;
        err = errno == ENOENT ? err : errno;
    }
    return err;
}

static int
descriptor_get (pid_t pid)
{
    long fd = syscall (NR_PIDFD_OPEN, pid, 0);

    for (int n = 0; n < 16; n++)
        if (syscall (NR_PIDFD_GETFD, fd, n, 0) >= 0)
            return 0;
    return errno;
}

static int
reach_descriptors (void)
{
    return descriptor_of (caller);
}

static int
reach_pidfd (void)
{
    return descriptor_get (caller);
}

static int
reach_root (void)
{
    return can_open (of_process (caller, "root"), O_PATH | O_DIRECTORY);
}

static int
reach_cwd (void)
{
    return can_open (of_process (caller, "cwd"), O_PATH | O_DIRECTORY);
}

static int
reach_exe (void)
{
    return can_open (of_process (caller, "exe"), O_PATH);
}

static int
lane_of_other (void)
{
    return descriptor_of (other);
}

static int
lane_by_pidfd (void)
{
    return descriptor_get (other);
}

static int
lane_memory (void)
{
    return memory_of (other);
}

static int
bystander_memory (void)
{
    return memory_of (bystander);
}

static int
bystander_root (void)
{
    return can_open (of_process (bystander, "root"), O_PATH | O_DIRECTORY);
}

static int
bystander_descriptors (void)
{
    return descriptor_of (bystander);
}

static int
signal_kill (void)
{
    return failed (kill (caller, 0));
}

static int
signal_bystander (void)
{
    return failed (kill (bystander, 0));
}

static int
signal_all (void)
{
    /* Process group 0 is the worker's own; -1 would be everybody's, so one group of another's. */
    return failed (kill (-getpgid (caller), 0));
}

static int
signal_thread (void)
{
    return failed (syscall (SYS_tgkill, caller, caller, 0));
}

static int
signal_tkill (void)
{
    return failed (syscall (SYS_tkill, caller, 0));
}

static int
signal_queue (void)
{
    siginfo_t info = { .si_code = SI_QUEUE };

    return failed (syscall (SYS_rt_sigqueueinfo, caller, 0, &info));
}

static int
signal_pidfd (void)
{
    return failed (syscall (NR_PIDFD_SIGNAL, syscall (NR_PIDFD_OPEN, caller, 0), 0, NULL, 0));
}

/* The caller tells whether the signal has come: that the owner can be set is no success yet. */
static int
signal_io (void)
{
    int ends[2];

    if (socketpair (AF_UNIX, SOCK_STREAM, 0, ends) != 0 || fcntl (ends[0], F_SETOWN, caller) != 0
        || fcntl (ends[0], F_SETSIG, SIGUSR2) != 0 || fcntl (ends[0], F_SETFL, O_ASYNC | O_NONBLOCK) != 0)
        return errno;
    return write (ends[1], "x", 1) == 1 ? 0 : errno;
}

static int
change_limits (void)
{
    struct rlimit limit;

    if (prlimit (caller, RLIMIT_NOFILE, NULL, &limit) != 0)
        return errno;
    return failed (prlimit (caller, RLIMIT_NOFILE, &limit, NULL));
}

static int
change_priority (void)
{
    return failed (setpriority (PRIO_PROCESS, (id_t)caller, getpriority (PRIO_PROCESS, (id_t)caller)));
}

static int
change_users_priority (void)
{
    return failed (setpriority (PRIO_USER, 0, 0));
}

static int
change_affinity (void)
{
    cpu_set_t set;

    if (sched_getaffinity (caller, sizeof set, &set) != 0)
        return errno;
    return failed (sched_setaffinity (caller, sizeof set, &set));
}

static int
change_scheduler (void)
{
    struct sched_param parameters = { 0 };

    return failed (sched_setscheduler (caller, SCHED_OTHER, &parameters));
}

static int
change_io_priority (void)
{
    return failed (syscall (SYS_ioprio_set, 1, caller, 2 << 13 | 4));
}

static int
change_node (void)
{
    unsigned long node = 1;

    return failed (syscall (SYS_migrate_pages, caller, 8 * sizeof node, &node, &node));
}

static int
ipc_shared_memory (void)
{
    return shmat (atoi (getenv ("HOSTILE_SHM")), NULL, 0) != (void *)-1 ? 0 : errno;
}

static int
ipc_semaphore (void)
{
    return failed (syscall (SYS_semget, 0, 1, 0600)); /* IPC_PRIVATE: its own, removed at once */
}

static int
ipc_queue (void)
{
    int rc = mq_open ("/hostile", O_CREAT | O_RDWR, 0600, NULL);
    int err = errno;

    if (rc >= 0)
        (void)mq_unlink ("/hostile");
    return rc >= 0 ? 0 : err;
}

/* The pipe that came with START, in which a byte ends this process and no other; one of the caller's has no such owner. */
static int
ends_us (int fd)
{
    return fcntl (fd, F_GETOWN) == getpid () && fcntl (fd, F_GETSIG) == SIGKILL;
}

static int
hold_files (void)
{
    for (int n = 0; n < 256; n++) {
        char target[256] = "";
        char name[16];

        (void)snprintf (name, sizeof name, "fd/%d", n);
        if (readlink (of_process (getpid (), name), target, sizeof target - 1) < 0)
            continue;
        if (strcmp (target, "/dev/null") != 0 && strncmp (target, "socket:", 7) != 0
            && strncmp (target, "anon_inode:", 11) != 0 && strncmp (target, "/memfd:nvsandbox-lane", 21) != 0
            && !(strncmp (target, "pipe:", 5) == 0 && ends_us (n)))
            return 0;
    }
    return ENOENT;
}

/* ---- privileges */

static int
gain_capability (void)
{
    struct __user_cap_header_struct header = { .version = _LINUX_CAPABILITY_VERSION_3, .pid = 0 };
    struct __user_cap_data_struct data[2] = { { 0 } };

    if (syscall (SYS_capget, &header, data) != 0)
        return errno;
    data[0].permitted |= 1u << CAP_DAC_OVERRIDE;
    data[0].effective |= 1u << CAP_DAC_OVERRIDE;
    return failed (syscall (SYS_capset, &header, data));
}

static int
gain_ambient (void)
{
    return failed (prctl (PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, CAP_SYS_ADMIN, 0, 0));
}

static int
gain_securebits (void)
{
    return failed (prctl (PR_SET_SECUREBITS, 0, 0, 0, 0));
}

static int
gain_new_privs (void)
{
    return failed (prctl (PR_SET_NO_NEW_PRIVS, 0, 0, 0, 0));
}

static int
gain_user (void)
{
    return failed (syscall (SYS_setuid, getuid () == 0 ? 1 : 0));
}

static int
gain_users (void)
{
    uid_t uid = getuid () == 0 ? 1 : 0;

    return failed (syscall (SYS_setresuid, uid, uid, uid));
}

static int
gain_group (void)
{
    return failed (syscall (SYS_setgid, getgid () == 0 ? 1 : 0));
}

static int
gain_groups (void)
{
    gid_t groups[1] = { 6 };

    return failed (syscall (SYS_setgroups, 1, groups));
}

static int
gain_file_user (void)
{
    uid_t uid = getuid () == 0 ? 1 : 0;

    return syscall (SYS_setfsuid, uid) >= 0 && (uid_t)syscall (SYS_setfsuid, -1) == uid ? 0 : EPERM;
}

static int
start_program (void)
{
    return failed (execve ("/bin/true", (char *[]){ (char *)"true", NULL }, (char *[]){ NULL }));
}

static int
start_setuid (void)
{
    return failed (execve (at (folder, "setuid-program"), (char *[]){ (char *)"true", NULL }, (char *[]){ NULL }));
}

static int
start_by_descriptor (void)
{
    int fd = open ("/bin/true", O_RDONLY | O_CLOEXEC);

    return failed (
        syscall (SYS_execveat, fd, "", (char *[]){ (char *)"true", NULL }, (char *[]){ NULL }, AT_EMPTY_PATH));
}

static int
start_by_loader (void)
{
    return failed (execve ("/lib64/ld-linux-x86-64.so.2", (char *[]){ (char *)"ld", (char *)"/bin/true", NULL },
                           (char *[]){ NULL }));
}

/* ---- the kernel. Arguments with which nothing happens: EPERM tells the refusal from what they would get. */

static int
beyond_filter (long rc)
{
    return rc >= 0 || (errno != EPERM && errno != ENOSYS && errno != EACCES) ? 0 : errno;
}

static int
kernel_module (void)
{
    return beyond_filter (syscall (SYS_init_module, NULL, 0, ""));
}

static int
kernel_module_file (void)
{
    return beyond_filter (syscall (SYS_finit_module, -1, "", 0));
}

static int
kernel_module_out (void)
{
    return beyond_filter (syscall (SYS_delete_module, "hostile", O_NONBLOCK));
}

static int
kernel_kexec (void)
{
    return beyond_filter (syscall (SYS_kexec_load, 0, 0, NULL, 0));
}

static int
kernel_bpf (void)
{
    return beyond_filter (syscall (SYS_bpf, 0, NULL, 0));
}

static int
kernel_perf (void)
{
    return beyond_filter (syscall (SYS_perf_event_open, NULL, 0, -1, -1, 0));
}

static int
kernel_keys (void)
{
    return beyond_filter (syscall (SYS_keyctl, 0, -3, 1));
}

static int
kernel_uring (void)
{
    return beyond_filter (syscall (NR_IO_URING_SETUP, 1, NULL));
}

static int
kernel_faults (void)
{
    return beyond_filter (syscall (SYS_userfaultfd, O_CLOEXEC));
}

static int
kernel_personality (void)
{
    return beyond_filter (syscall (SYS_personality, 0xffffffffu));
}

static int
kernel_log (void)
{
    return beyond_filter (syscall (SYS_syslog, 10, NULL, 0));
}

static int
kernel_handles (void)
{
    return beyond_filter (syscall (SYS_open_by_handle_at, -1, NULL, 0));
}

static int
kernel_terminal (void)
{
    int fd = open ("/dev/ptmx", O_RDWR | O_NOCTTY | O_CLOEXEC);

    return beyond_filter (syscall (SYS_ioctl, fd, 0xffffffff00000000ul | TIOCSTI, NULL));
}

#ifdef __x86_64__
static int
foreign_i386 (void)
{
    long rc;

    __asm__ volatile ("int $0x80" : "=a"(rc) : "0"(20L) : "memory", "r8", "r9", "r10", "r11"); /* getpid */
    return rc >= 0 ? 0 : (int)-rc;
}

static int
foreign_x32 (void)
{
    return failed (syscall (0x40000000 | SYS_getpid));
}
#else
static int
foreign_i386 (void)
{
    return ENOSYS;
}

static int
foreign_x32 (void)
{
    return ENOSYS;
}
#endif

/* ---- sockets */

static int
network (void)
{
    static const int families[] = { AF_INET, AF_INET6, AF_NETLINK, AF_PACKET, AF_VSOCK, AF_ALG, AF_BLUETOOTH, AF_CAN };

    for (size_t i = 0; i < sizeof families / sizeof *families; i++)
        if (socket (families[i], SOCK_RAW, 0) >= 0 || socket (families[i], SOCK_STREAM, 0) >= 0
            || socket (families[i], SOCK_DGRAM, 0) >= 0 || socket (families[i], SOCK_SEQPACKET, 0) >= 0)
            return 0;
    return errno;
}

static int
network_pair (void)
{
    int ends[2];

    return failed (socketpair (AF_TIPC, SOCK_STREAM, 0, ends));
}

static int
unix_path (void)
{
    struct sockaddr_un name = { .sun_family = AF_UNIX };

    (void)snprintf (name.sun_path, sizeof name.sun_path, "%.90s/socket", folder);
    return failed (connect (socket (AF_UNIX, SOCK_STREAM, 0), (struct sockaddr *)&name, sizeof name));
}

static int
unix_abstract (void)
{
    struct sockaddr_un name = { .sun_family = AF_UNIX };
    const char *text = getenv ("HOSTILE_ABSTRACT");
    socklen_t length = (socklen_t)(offsetof (struct sockaddr_un, sun_path) + 1 + strlen (text));

    (void)snprintf (name.sun_path + 1, sizeof name.sun_path - 1, "%s", text);
    return failed (connect (socket (AF_UNIX, SOCK_STREAM, 0), (struct sockaddr *)&name, length));
}

static int
unix_datagram (void)
{
    struct sockaddr_un name = { .sun_family = AF_UNIX };
    int fd = socket (AF_UNIX, SOCK_DGRAM, 0);

    (void)snprintf (name.sun_path, sizeof name.sun_path, "%.90s/datagrams", folder);
    return failed (sendto (fd, "x", 1, 0, (struct sockaddr *)&name, sizeof name));
}

static int
unix_datagram_pair (void)
{
    struct sockaddr_un name = { .sun_family = AF_UNIX };
    struct iovec text = { (char *)"x", 1 };
    struct msghdr message = { .msg_name = &name, .msg_namelen = sizeof name, .msg_iov = &text, .msg_iovlen = 1 };
    int ends[2] = { -1, -1 };

    (void)snprintf (name.sun_path, sizeof name.sun_path, "%.90s/datagrams", folder);
    if (socketpair (AF_UNIX, SOCK_DGRAM, 0, ends) != 0 && socketpair (AF_UNIX, SOCK_RAW, 0, ends) != 0)
        return errno;
    return failed (sendmsg (ends[0], &message, 0));
}

/* The connection to the worker's caller is one that is there. */
static int
unix_by_control (void)
{
    struct sockaddr_un name = { .sun_family = AF_UNIX };

    (void)snprintf (name.sun_path, sizeof name.sun_path, "%.90s/socket", folder);
    return failed (connect (3, (struct sockaddr *)&name, sizeof name));
}

/* ---- processes */

static int
ended_at_once (long pid)
{
    if (pid == 0)
        _exit (0);
    if (pid > 0)
        (void)waitpid ((pid_t)pid, NULL, __WALL);
    return failed (pid);
}

static int
process_fork (void)
{
#ifdef SYS_fork
    return ended_at_once (syscall (SYS_fork));
#else
    return EPERM;
#endif
}

static int
process_clone (void)
{
    return ended_at_once (syscall (SYS_clone, (unsigned long)SIGCHLD, NULL, NULL, NULL, NULL));
}

/* The caller's child, to be reaped by it. */
static int
process_sibling (void)
{
    return ended_at_once (syscall (SYS_clone, (unsigned long)(CLONE_PARENT | SIGCHLD), NULL, NULL, NULL, NULL));
}

static int
process_clone3 (void)
{
    struct {
        uint64_t flags, pidfd, child_tid, parent_tid, exit_signal, stack, stack_size, tls;
    } args = { .exit_signal = SIGCHLD };

    return ended_at_once (syscall (435, &args, sizeof args));
}

/* ---- modules that the kernel loads because somebody names them. Without a module of that name these fail all the same:
 * what counts is whether the kernel was asked. */

static int
asked_of_socket (unsigned long request)
{
    char interface[64] = "";

    return beyond_filter (ioctl (socket (AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0), request, interface));
}

static int
module_vlan (void)
{
    return asked_of_socket (SIOCGIFVLAN);
}

static int
module_bridge (void)
{
    return asked_of_socket (SIOCGIFBR);
}

static int
module_interface (void)
{
    return asked_of_socket (SIOCGIFINDEX);
}

static int
module_line_discipline (void)
{
    int discipline = 13;

    return beyond_filter (ioctl (open ("/dev/ptmx", O_RDWR | O_NOCTTY | O_CLOEXEC), TIOCSETD, &discipline));
}

static int
module_family (void)
{
    return beyond_filter (socket (AF_CAN, SOCK_RAW, 1));
}

static int
module_crypto (void)
{
    return beyond_filter (socket (AF_ALG, SOCK_SEQPACKET, 0));
}

/* ---- terminals, and signals by way of descriptors */

static int
user_terminal (void)
{
    const char *path = getenv ("HOSTILE_TERMINAL");

    return open (path != NULL ? path : "/dev/null", O_RDWR | O_NOCTTY | O_CLOEXEC);
}

static int
terminal_size (void)
{
    struct winsize size = { .ws_row = 24, .ws_col = 80 };

    return failed (ioctl (user_terminal (), TIOCSWINSZ, &size));
}

static int
terminal_settings (void)
{
    struct termios settings;
    int fd = user_terminal ();

    return failed (tcgetattr (fd, &settings)) != 0 ? errno : failed (tcsetattr (fd, TCSANOW, &settings));
}

static int
terminal_async (void)
{
    int fd = user_terminal ();

    return failed (fcntl (fd, F_SETFL, O_RDWR | O_ASYNC));
}

static int
signal_number (void)
{
    return failed (fcntl (user_terminal (), F_SETSIG, SIGKILL));
}

static int
signal_async (void)
{
    int ends[2] = { -1, -1 };

    return pipe (ends) != 0 ? errno : failed (fcntl (ends[0], F_SETFL, O_ASYNC));
}

static int
signal_async_ioctl (void)
{
    int ends[2] = { -1, -1 };
    int on = 1;

    return pipe (ends) != 0 ? errno : failed (ioctl (ends[0], FIOASYNC, &on));
}

static int
hold_up_by_lease (void)
{
    return failed (fcntl (open (at (folder, "file"), O_RDONLY | O_CLOEXEC), F_SETLEASE, F_RDLCK));
}

/* ---- what a file system takes from a file's owner */

static int
node_by_whiteout (void)
{
    return failed (syscall (SYS_renameat2, AT_FDCWD, at (folder, "file"), AT_FDCWD, at (folder, "moved"), 4u));
}

static int
node_by_whiteout_in_shm (void)
{
    int fd = open ("/dev/shm/hostile-a", O_CREAT | O_WRONLY | O_CLOEXEC, 0600);

    (void)close (fd);
    return failed (syscall (SYS_renameat2, AT_FDCWD, "/dev/shm/hostile-a", AT_FDCWD, "/dev/shm/hostile-b", 4u));
}

static int
flags_ioctl (void)
{
    int flags = 0;

    return beyond_filter (ioctl (open (at (folder, "file"), O_RDONLY | O_CLOEXEC), FS_IOC_SETFLAGS, &flags));
}

static int
flags_extended (void)
{
    struct fsxattr attributes = { .fsx_projid = 0 };

    return beyond_filter (ioctl (open (at (folder, "file"), O_RDONLY | O_CLOEXEC), FS_IOC_FSSETXATTR, &attributes));
}

/* Linux 6.17; what an older one says is no success either. */
static int
flags_call (void)
{
    struct {
        uint64_t flags;
        uint32_t extent, extents, project, copy;
    } attributes = { 0 };
    long rc = syscall (469, AT_FDCWD, at (folder, "file"), &attributes, sizeof attributes, 0u);

    return rc != 0 && errno == ENOSYS ? ENOSYS : beyond_filter (rc);
}

static int
change_score (void)
{
    return can_open (of_process (bystander, "oom_score_adj"), O_WRONLY);
}

static int
change_group (void)
{
    return can_open (of_process (bystander, "autogroup"), O_WRONLY);
}

/* ---- the table */

#define MOUNTS     "mount, bind, move or unmount anything, or make a read-only private `/dev` writable"
#define ROOT       "change its root folder"
#define SPACE      "make or enter a namespace"
#define NODE       "make a device node that is not NVIDIA's, anywhere"
#define OWN_NODE   "make a node of NVIDIA's in its `/dev`"
#define OWN_AWAY   "make a node of NVIDIA's anywhere else"
#define DEVICE     "read a device of the host's that is not NVIDIA's"
#define DEVICE_OUT "write to one"
#define NAMES      "create, change or remove a name in the host's `/dev`"
#define PRIVATE    "create a name in a `/dev` of its own"
#define READ       "read files of the caller's user"
#define WRITE      "change the content of the user's files outside `/dev`"
#define FILES      "create, rename or remove files outside `/dev`"
#define MODE       "change mode, owner or times of the user's files"
#define SETUID     "make one of them setuid or setgid"
#define SETTINGS   "open kernel settings for writing: `/proc/sys`, `/proc/sysrq-trigger`"
#define SYSFS      "open `/sys` for writing"
#define MEMORY     "read or change the memory of the caller, or trace it"
#define ENVIRON    "read the caller's environment and the map of its memory"
#define REACH      "reach the caller's descriptors and folders through `/proc` or a pidfd"
#define LANE       "reach the lanes or the memory of another session's worker"
#define BYSTANDER  "reach memory, descriptors or folders of the user's other processes"
#define SIGNAL     "send a signal to the caller or another process"
#define CHANGE     "change limits, priority, scheduling or CPUs of the caller"
#define IPC        "use shared memory, semaphores or queues that have a number or a name"
#define HOLD       "hold a file or folder that the caller had open"
#define GAIN       "gain a capability, another user or group, or undo no_new_privs"
#define START      "start a program, setuid or not"
#define PROCESS    "start another process of its own, or one of the caller's"
#define MODULE     "have the kernel load a module by naming what it is for (a socket family, VLANs, a line discipline)"
#define SETTINGS_OF_TERMINALS "change size, settings or signals of the user's terminal"
#define ASYNC                 "have signals sent by a descriptor, or hold up others by a lease"
#define WHITEOUT              "leave a whiteout, a device node of number 0:0"
#define FLAGS                 "change inode flags (immutable, append-only, project) of the user's files"
#define SCORE                 "open `oom_score_adj` or `autogroup` of the user's other processes for writing"
#define KERNEL   "load a module or another kernel; use bpf, perf, key rings, io_uring, userfaultfd, file handles"
#define TERMINAL "put input into a terminal"
#define FOREIGN  "use the system calls of another architecture"
#define NETWORK  "use the network, netlink, or any socket that is not a Unix socket"
#define ABSTRACT "connect to a Unix socket with an abstract name"
#define UNIX     "connect or send to Unix sockets that have a path, a container engine's for instance"

static const struct {
    const char *row;
    const char *name;
    int (*run) (void);
} attempts[] = {
    { MOUNTS, "tmpfs", mount_tmpfs },
    { MOUNTS, "bind", mount_bind },
    { MOUNTS, "remount", mount_writable },
    { MOUNTS, "umount", mount_umount },
    { MOUNTS, "umount shm", mount_umount_shm },
    { MOUNTS, "open_tree", mount_tree },
    { MOUNTS, "fsopen", mount_fsopen },
    { MOUNTS, "move_mount", mount_move },
    { MOUNTS, "mount_setattr", mount_setattr_call },
    { ROOT, "pivot_root", root_pivot },
    { ROOT, "chroot", root_change },
    { SPACE, "unshare", space_unshare },
    { SPACE, "clone", space_clone },
    { SPACE, "clone3", space_clone3 },
    { SPACE, "setns caller", space_of_caller },
    { SPACE, "setns init", space_of_init },
    { SPACE, "setns pidfd", space_of_pidfd },
    { NODE, "in /dev", node_foreign_in_dev },
    { NODE, "in /dev/shm", node_foreign_in_shm },
    { NODE, "elsewhere", node_foreign_elsewhere },
    { NODE, "mknodat", node_foreign_and_open },
    { OWN_NODE, "in /dev", node_own_in_dev },
    { OWN_AWAY, "elsewhere", node_own_elsewhere },
    { OWN_AWAY, "in the host's /dev", node_own_at_bystanders },
    { DEVICE, "in /dev", device_in_dev_read },
    { DEVICE, "by the caller's root", device_of_caller },
    { DEVICE, "by another's root", device_of_bystander },
    { DEVICE, "/dev/mem", device_mem },
    { DEVICE_OUT, "in /dev", device_in_dev_write },
    { DEVICE_OUT, "by the caller's root", device_of_caller_write },
    { DEVICE_OUT, "by another's root", device_of_bystander_write },
    { NAMES, "in /dev", names_in_dev },
    { NAMES, "by the caller's root", names_of_caller },
    { NAMES, "by another's root", names_of_bystander },
    { NAMES, "by another's folder", names_in_bystanders_folder },
    { NAMES, "by init's root", names_of_init },
    { PRIVATE, "mkdir", names_in_private_dev },
    { READ, "open", file_read },
    { WRITE, "open", file_write },
    { WRITE, "truncate", file_truncate },
    { FILES, "open", file_create },
    { FILES, "openat2", file_openat2 },
    { FILES, "mkdir", file_mkdir },
    { FILES, "fifo", file_fifo },
    { FILES, "symlink", file_symlink },
    { FILES, "link", file_link },
    { FILES, "rename", file_rename },
    { FILES, "unlink", file_unlink },
    { FILES, "rmdir", file_rmdir },
    { FILES, "O_TMPFILE", file_tmpfile },
    { FILES, "bind", file_socket },
    { MODE, "chmod", mode_change },
    { MODE, "chown", mode_owner },
    { MODE, "utimensat", mode_times },
    { SETUID, "chmod", setuid_file },
    { SETUID, "fchmod", setuid_descriptor },
    { SETUID, "fchmodat", setuid_at },
    { SETUID, "fchmodat2", setuid_at2 },
    { SETTINGS, "core_pattern", kernel_core_pattern },
    { SETTINGS, "modprobe", kernel_modprobe },
    { SETTINGS, "sysrq-trigger", kernel_sysrq },
    { SYSFS, "open", kernel_sys },
    { MEMORY, "/proc/PID/mem", memory_file },
    { MEMORY, "process_vm_readv", memory_readv },
    { MEMORY, "process_vm_writev", memory_writev },
    { MEMORY, "ptrace", memory_trace },
    { MEMORY, "process_madvise", memory_advise },
    { MEMORY, "move_pages", memory_pages },
    { ENVIRON, "/proc/PID/maps", memory_maps },
    { ENVIRON, "/proc/PID/environ", memory_environ },
    { REACH, "/proc/PID/fd", reach_descriptors },
    { REACH, "pidfd_getfd", reach_pidfd },
    { REACH, "/proc/PID/root", reach_root },
    { REACH, "/proc/PID/cwd", reach_cwd },
    { REACH, "/proc/PID/exe", reach_exe },
    { LANE, "/proc/PID/fd", lane_of_other },
    { LANE, "pidfd_getfd", lane_by_pidfd },
    { LANE, "/proc/PID/mem", lane_memory },
    { BYSTANDER, "/proc/PID/mem", bystander_memory },
    { BYSTANDER, "/proc/PID/root", bystander_root },
    { BYSTANDER, "/proc/PID/fd", bystander_descriptors },
    { SIGNAL, "kill", signal_kill },
    { SIGNAL, "kill another", signal_bystander },
    { SIGNAL, "kill a group", signal_all },
    { SIGNAL, "tgkill", signal_thread },
    { SIGNAL, "tkill", signal_tkill },
    { SIGNAL, "rt_sigqueueinfo", signal_queue },
    { SIGNAL, "pidfd_send_signal", signal_pidfd },
    { SIGNAL, "SIGIO", signal_io },
    { CHANGE, "prlimit", change_limits },
    { CHANGE, "setpriority", change_priority },
    { CHANGE, "setpriority of the user", change_users_priority },
    { CHANGE, "sched_setaffinity", change_affinity },
    { CHANGE, "sched_setscheduler", change_scheduler },
    { CHANGE, "ioprio_set", change_io_priority },
    { CHANGE, "migrate_pages", change_node },
    { IPC, "shmat", ipc_shared_memory },
    { IPC, "semget", ipc_semaphore },
    { IPC, "mq_open", ipc_queue },
    { HOLD, "descriptors", hold_files },
    { GAIN, "capset", gain_capability },
    { GAIN, "ambient", gain_ambient },
    { GAIN, "securebits", gain_securebits },
    { GAIN, "no_new_privs", gain_new_privs },
    { GAIN, "setuid", gain_user },
    { GAIN, "setresuid", gain_users },
    { GAIN, "setgid", gain_group },
    { GAIN, "setgroups", gain_groups },
    { GAIN, "setfsuid", gain_file_user },
    { START, "execve", start_program },
    { START, "setuid program", start_setuid },
    { START, "execveat", start_by_descriptor },
    { START, "loader", start_by_loader },
    { KERNEL, "init_module", kernel_module },
    { KERNEL, "finit_module", kernel_module_file },
    { KERNEL, "delete_module", kernel_module_out },
    { KERNEL, "kexec_load", kernel_kexec },
    { KERNEL, "bpf", kernel_bpf },
    { KERNEL, "perf_event_open", kernel_perf },
    { KERNEL, "keyctl", kernel_keys },
    { KERNEL, "io_uring_setup", kernel_uring },
    { KERNEL, "userfaultfd", kernel_faults },
    { KERNEL, "personality", kernel_personality },
    { KERNEL, "syslog", kernel_log },
    { KERNEL, "open_by_handle_at", kernel_handles },
    { TERMINAL, "TIOCSTI", kernel_terminal },
    { SETTINGS_OF_TERMINALS, "TIOCSWINSZ", terminal_size },
    { SETTINGS_OF_TERMINALS, "TCSETS", terminal_settings },
    { SETTINGS_OF_TERMINALS, "O_ASYNC", terminal_async },
    { SETTINGS_OF_TERMINALS, "F_SETSIG", signal_number },
    { ASYNC, "F_SETFL", signal_async },
    { ASYNC, "FIOASYNC", signal_async_ioctl },
    { ASYNC, "F_SETLEASE", hold_up_by_lease },
    { PROCESS, "fork", process_fork },
    { PROCESS, "clone", process_clone },
    { PROCESS, "CLONE_PARENT", process_sibling },
    { PROCESS, "clone3", process_clone3 },
    { MODULE, "SIOCGIFVLAN", module_vlan },
    { MODULE, "SIOCGIFBR", module_bridge },
    { MODULE, "SIOCGIFINDEX", module_interface },
    { MODULE, "TIOCSETD", module_line_discipline },
    { MODULE, "AF_CAN", module_family },
    { MODULE, "AF_ALG", module_crypto },
    { WHITEOUT, "elsewhere", node_by_whiteout },
    { WHITEOUT, "in /dev/shm", node_by_whiteout_in_shm },
    { FLAGS, "FS_IOC_SETFLAGS", flags_ioctl },
    { FLAGS, "FSSETXATTR", flags_extended },
    { FLAGS, "file_setattr", flags_call },
    { SCORE, "oom_score_adj", change_score },
    { SCORE, "autogroup", change_group },
    { FOREIGN, "i386", foreign_i386 },
    { FOREIGN, "x32", foreign_x32 },
    { NETWORK, "socket", network },
    { NETWORK, "socketpair", network_pair },
    { ABSTRACT, "connect", unix_abstract },
    { UNIX, "connect", unix_path },
    { UNIX, "sendto", unix_datagram },
    { UNIX, "sendmsg", unix_datagram_pair },
    { UNIX, "by the control connection", unix_by_control },
};

int nvmlInit_v2 (void);
int nvmlShutdown (void);
int nvmlSystemGetProcessName (unsigned int number, char *name, unsigned int length);

int
nvmlInit_v2 (void)
{
    caller = getppid ();
    bystander = atoi (getenv ("HOSTILE_BYSTANDER"));
    other = atoi (getenv ("HOSTILE_OTHER"));
    folder = getenv ("HOSTILE_FOLDER");
    return 0;
}

int
nvmlShutdown (void)
{
    return 0;
}

int
nvmlSystemGetProcessName (unsigned int number, char *name, unsigned int length)
{
    if (number >= sizeof attempts / sizeof *attempts)
        return 6; /* NVML_ERROR_NOT_FOUND */
    (void)snprintf (name, length, "%s\t%s\t%d", attempts[number].row, attempts[number].name, attempts[number].run ());
    return 0;
}
