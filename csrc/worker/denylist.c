/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which system calls the worker is refused, and which a program under `run --lockdown`, as rules of libseccomp's; a
 * program that the build runs. It prints the filters that libseccomp makes of them as C source, which lockdown.c includes
 * and loads: to have the library make one in each worker took 0.4 ms, a fifth of a start, and a library more in the
 * privileged process. What changes from worker to worker is chosen (`variant`) or put in (the process's own number).
 *
 * Both are refused what leads to the host's /dev, to the kernel and around a filter: that list is one (`denied`), and
 * nothing is refused to a program that is not refused to the worker too. The worker's own additions are what closed code
 * that answers queries needs nothing of, and whole programs cannot do without: they start others, signal their children,
 * share memory and use the network.
 */
#include "denylist.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <sched.h>
#include <seccomp.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>

#define COUNT(array) (sizeof (array) / sizeof *(array))

/* Newer than the libseccomp headers that we build against may be; from 424 on numbers are the same everywhere. */
#define NR_MOUNT_SETATTR    442 /* Linux 5.12 */
#define NR_PROCESS_MRELEASE 448 /* Linux 5.15 */
#define NR_QUOTACTL_FD      443 /* Linux 5.14 */
#define NR_OPEN_TREE_ATTR   467 /* Linux 6.15 */
#define NR_FCHMODAT2        452 /* Linux 6.6 */
#define NR_SETXATTRAT       463 /* Linux 6.13 */
#define NR_REMOVEXATTRAT    466 /* Linux 6.13 */
#define NR_FILE_SETATTR     469 /* Linux 6.17 */

/* Refused to both, whatever the arguments. A list of what is denied, for what a closed library calls cannot be known: a
 * list of what is allowed would break with the next driver, and there is none for any program. */
static const int denied[] = {
    /* mounts: the private /dev stays what it is */
    SCMP_SYS (mount),
    SCMP_SYS (umount),
    SCMP_SYS (umount2),
    SCMP_SYS (pivot_root),
    SCMP_SYS (chroot),
    SCMP_SYS (move_mount),
    SCMP_SYS (open_tree),
    SCMP_SYS (fsopen),
    SCMP_SYS (fsmount),
    SCMP_SYS (fsconfig),
    SCMP_SYS (fspick),
    NR_MOUNT_SETATTR,
    NR_OPEN_TREE_ATTR,
    SCMP_SYS (swapon),
    SCMP_SYS (swapoff),
    /* namespaces; clone is below */
    SCMP_SYS (unshare),
    SCMP_SYS (setns),
    /* other processes: under GUARD and MOUNT they run as the same user */
    SCMP_SYS (ptrace),
    SCMP_SYS (process_vm_readv),
    SCMP_SYS (process_vm_writev),
    SCMP_SYS (kcmp),
    SCMP_SYS (pidfd_getfd),
    SCMP_SYS (process_madvise),
    NR_PROCESS_MRELEASE,
    /* the kernel itself */
    SCMP_SYS (init_module),
    SCMP_SYS (finit_module),
    SCMP_SYS (delete_module),
    SCMP_SYS (create_module),
    SCMP_SYS (bpf),
    SCMP_SYS (perf_event_open),
    SCMP_SYS (kexec_load),
    SCMP_SYS (kexec_file_load),
    SCMP_SYS (reboot),
    SCMP_SYS (syslog),
    SCMP_SYS (acct),
    SCMP_SYS (quotactl),
    NR_QUOTACTL_FD,
    SCMP_SYS (keyctl),
    SCMP_SYS (add_key),
    SCMP_SYS (request_key),
    SCMP_SYS (userfaultfd),
    SCMP_SYS (iopl),
    SCMP_SYS (ioperm),
    SCMP_SYS (settimeofday),
    SCMP_SYS (clock_settime),
    SCMP_SYS (stime),
    SCMP_SYS (sethostname),
    SCMP_SYS (setdomainname),
    SCMP_SYS (uselib),
    SCMP_SYS (vhangup),
    SCMP_SYS (lookup_dcookie),
    SCMP_SYS (_sysctl),
    SCMP_SYS (fanotify_init),
    /* ways around what a filter sees: requests in a ring, files by handle */
    SCMP_SYS (io_uring_setup),
    SCMP_SYS (io_uring_enter),
    SCMP_SYS (io_uring_register),
    SCMP_SYS (open_by_handle_at),
};

/* Refused to the worker alone. */
static const int denied_library[] = {
    /* other processes: a program signals its own children so, and has the memory of its threads moved */
    SCMP_SYS (pidfd_send_signal),
    SCMP_SYS (tkill), /* names a thread without its process; tgkill is what C libraries raise signals with */
    SCMP_SYS (migrate_pages),
    /* the caller's System V objects and message queues, found by number or name, and of the same user: how programs
     * that belong together talk to each other */
    SCMP_SYS (shmget),
    SCMP_SYS (shmat),
    SCMP_SYS (shmctl),
    SCMP_SYS (semget),
    SCMP_SYS (semop),
    SCMP_SYS (semtimedop),
    SCMP_SYS (semctl),
    SCMP_SYS (msgget),
    SCMP_SYS (msgsnd),
    SCMP_SYS (msgrcv),
    SCMP_SYS (msgctl),
    SCMP_SYS (mq_open),
    SCMP_SYS (mq_unlink),
    /* starting programs: NVML starts nvidia-modprobe and nothing else, and no module may load because of us */
    SCMP_SYS (execve),
    SCMP_SYS (execveat),
    /* of its own process: setarch and some run time libraries use it */
    SCMP_SYS (personality),
    /* exporters read the clock's state so; to set it takes a capability that a program under --lockdown has not */
    SCMP_SYS (clock_adjtime),
    SCMP_SYS (adjtimex),
    /* tells mounts apart for systemd's and util-linux's programs; nothing can be opened with what it gives (above) */
    SCMP_SYS (name_to_handle_at),
    /* inode flags (immutable, append-only, project), which ask for the file's owner alone */
    NR_FILE_SETATTR,
    /* other processes of its own: see add_clone_rules () */
    SCMP_SYS (fork),
    SCMP_SYS (vfork),
};

static const uint64_t namespace_flags[] = {
    CLONE_NEWNS, CLONE_NEWCGROUP, CLONE_NEWUTS, CLONE_NEWIPC, CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET,
};

/* A program shares a terminal with who started it: what it puts into the input would be typed by them. And for these the
 * kernel loads a module that somebody names, without any capability: a line discipline, bridge, 8021q. */
static const uint64_t denied_ioctls[] = {
    TIOCSTI,     TIOCLINUX,   TIOCSETD,    SIOCGIFBR,   SIOCSIFBR,   SIOCBRADDBR, SIOCBRDELBR,
    SIOCBRADDIF, SIOCBRDELIF, SIOCGIFVLAN, SIOCSIFVLAN, SIOCADDDLCI, SIOCDELDLCI,
};

/* The worker alone: these have signals sent to another process when a descriptor becomes ready (F_SETOWN), choose which
 * (F_SETSIG), or hold up whoever opens a file for the better part of a minute (F_SETLEASE). */
static const uint64_t denied_fcntls[] = { F_SETOWN, F_SETOWN_EX, F_SETSIG, F_SETLEASE };

/* The worker alone. The second byte of an ioctl's request says, by convention, whose it is. The drivers of NVIDIA's have
 * types of their own (F, m, d, c, or none at all for nvidia-uvm, whose requests are small numbers; G is WSL's), and which
 * of them the next driver has cannot be known: so it is the kernel's own types for what else a descriptor may be that are
 * closed, and of the terminals' and sockets', which reach furthest, what is allowed is listed. */
static const uint64_t denied_ioctl_types[] = {
    0x12, /* block devices */
    0x53, /* SCSI, CD-ROM */
    'X',  /* file systems: inode flags, freezing, trimming */
    'f',  /* file systems: inode flags */
    't',  /* PPP */
    'V',  /* virtual terminals */
    0x4b, /* keyboards, consoles */
    0x56, /* virtual terminals, modes */
    0x89, /* sockets, interfaces, bridges, VLANs; owners of signals */
    0x8b, /* wireless interfaces */
    0x94, /* btrfs */
};
/* Of the terminals' 'T', which are also those of any descriptor: what a C library asks before it buffers, sizes, and the
 * flags that fcntl can set as well (but FIOASYNC). */
static const uint64_t allowed_terminal_ioctls[] = {
    TCGETS, 0x542a /* TCGETS2 */, TIOCGWINSZ, FIONREAD, TIOCOUTQ, FIONBIO, FIOCLEX, FIONCLEX,
};

/* Allowed with one process only. The caller, and all else that the user runs, may be signalled or slowed down by a
 * process of the same user without any capability. */
static const int signals_to[] = {
    SCMP_SYS (kill),
    SCMP_SYS (tgkill), /* raise and abort */
    SCMP_SYS (rt_sigqueueinfo),
    SCMP_SYS (rt_tgsigqueueinfo),
};
static const int settings_of[] = {
    SCMP_SYS (prlimit64),      SCMP_SYS (sched_setaffinity), SCMP_SYS (sched_setscheduler),
    SCMP_SYS (sched_setparam), SCMP_SYS (sched_setattr),     SCMP_SYS (move_pages),
};
static const int priorities[] = { SCMP_SYS (setpriority), SCMP_SYS (ioprio_set) };

/* These, and all below, return 0 or a negative errno, as libseccomp does. */

/* A call that this architecture does not have is a negative number here, and is no rule. */
static int
refuse (scmp_filter_ctx filter, const int *calls, size_t count)
{
    int rc = 0;

    for (size_t i = 0; rc == 0 && i < count; i++)
        rc = seccomp_rule_add (filter, SCMP_ACT_ERRNO (EPERM), calls[i], 0);
    return rc;
}

/* The kernel looks at the lower 32 bits of an ioctl's and fcntl's request, so the filter must not look at more. */
static int
refuse_requests (scmp_filter_ctx filter, int call, const uint64_t *requests, size_t count)
{
    int rc = 0;

    for (size_t i = 0; rc == 0 && i < count; i++)
        rc = seccomp_rule_add (filter, SCMP_ACT_ERRNO (EPERM), call, 1,
                               SCMP_A1 (SCMP_CMP_MASKED_EQ, UINT32_MAX, requests[i]));
    return rc;
}

/* Unless the argument has the value. */
static int
refuse_but (scmp_filter_ctx filter, const int *calls, size_t count, uint64_t allowed)
{
    int rc = 0;

    for (size_t i = 0; rc == 0 && i < count; i++)
        rc = seccomp_rule_add (filter, SCMP_ACT_ERRNO (EPERM), calls[i], 1, SCMP_A0 (SCMP_CMP_NE, allowed, 0));
    return rc;
}

/* ---- for both ------------------------------------------------------------------------------------------- */

/* A program's sockets: Unix, Internet and netlink, and of the Internet's protocols not those that are modules. Refused as
 * by a kernel that lacks the others. What is no family at all (NPROTO and above) the kernel refuses by itself. */
static int
add_family_rules (scmp_filter_ctx filter)
{
    static const int calls[] = { SCMP_SYS (socket), SCMP_SYS (socketpair) };
    static const uint64_t internet[] = { AF_INET, AF_INET6 };
    static const uint64_t protocols[] = { IPPROTO_DCCP, IPPROTO_SCTP, IPPROTO_UDPLITE, 115 /* L2TP */ };
    static const uint64_t kinds[] = { SOCK_SEQPACKET, SOCK_DCCP };
    const uint64_t word = UINT32_MAX; /* of an int, which is what the kernel takes */
    int rc = 0;

    for (uint64_t family = 0; rc == 0 && family < 64; family++)
        for (size_t i = 0; rc == 0 && i < COUNT (calls); i++)
            if (family != AF_UNIX && family != AF_INET && family != AF_INET6 && family != AF_NETLINK)
                rc = seccomp_rule_add (filter, SCMP_ACT_ERRNO (EAFNOSUPPORT), calls[i], 1,
                                       SCMP_A0 (SCMP_CMP_MASKED_EQ, word, family));
    for (size_t f = 0; rc == 0 && f < COUNT (internet); f++) {
        const struct scmp_arg_cmp family = SCMP_A0 (SCMP_CMP_MASKED_EQ, word, internet[f]);

        for (size_t i = 0; rc == 0 && i < COUNT (protocols); i++)
            rc = seccomp_rule_add (filter, SCMP_ACT_ERRNO (EPROTONOSUPPORT), SCMP_SYS (socket), 2, family,
                                   SCMP_A2 (SCMP_CMP_MASKED_EQ, word, protocols[i]));
        for (size_t i = 0; rc == 0 && i < COUNT (kinds); i++)
            rc = seccomp_rule_add (filter, SCMP_ACT_ERRNO (ESOCKTNOSUPPORT), SCMP_SYS (socket), 2, family,
                                   SCMP_A1 (SCMP_CMP_MASKED_EQ, 0xf, kinds[i]));
    }
    return rc;
}

static int
add_rules (scmp_filter_ctx filter, unsigned int variant)
{
    int rc = refuse (filter, denied, COUNT (denied));

    for (size_t i = 0; rc == 0 && i < COUNT (namespace_flags); i++) {
        uint64_t flag = namespace_flags[i];

        rc = seccomp_rule_add (filter, SCMP_ACT_ERRNO (EPERM), SCMP_SYS (clone), 1,
                               SCMP_A0 (SCMP_CMP_MASKED_EQ, flag, flag));
    }
    /* clone3 has its flags in memory, where no filter sees them. ENOSYS makes the C library fall back on clone. */
    if (rc == 0)
        rc = seccomp_rule_add (filter, SCMP_ACT_ERRNO (ENOSYS), SCMP_SYS (clone3), 0);
    if (rc == 0)
        rc = refuse_requests (filter, SCMP_SYS (ioctl), denied_ioctls, COUNT (denied_ioctls));
    /* The kernel loads a module for a family of sockets, and for a protocol of the Internet's, that somebody asks for. The
     * worker is refused all but Unix sockets, below. */
    if (rc == 0 && variant == NVS_DENYLIST_PROGRAM)
        rc = add_family_rules (filter);
    /* Leaves a character device of number 0:0 behind, for which mknod is not asked. */
    if (rc == 0)
        rc = seccomp_rule_add (filter, SCMP_ACT_ERRNO (EPERM), SCMP_SYS (renameat2), 1,
                               SCMP_A4 (SCMP_CMP_MASKED_EQ, RENAME_WHITEOUT, RENAME_WHITEOUT));
    return rc;
}

/* ---- for the worker ------------------------------------------------------------------------------------- */

/* Of others' processes nothing is changed: signals go to this one, settings are those of the calling thread (0; a
 * filter cannot tell its own threads' numbers from others). A child of the library's cannot signal itself, with
 * which abort copes. */
static int
add_process_rules (scmp_filter_ctx filter)
{
    int rc;

    if ((rc = refuse_but (filter, signals_to, COUNT (signals_to), NVS_DENYLIST_SELF)) != 0
        || (rc = refuse_but (filter, settings_of, COUNT (settings_of), 0)) != 0)
        return rc;
    for (size_t i = 0; i < COUNT (priorities); i++) {
        /* Which: a process (0 or, for ioprio_set, 1), a group, a user's all. Never the group or the user. */
        const uint64_t process = priorities[i] == SCMP_SYS (setpriority) ? PRIO_PROCESS : 1;

        if ((rc = refuse_but (filter, &priorities[i], 1, process)) != 0
            || (rc = seccomp_rule_add (filter, SCMP_ACT_ERRNO (EPERM), priorities[i], 1, SCMP_A1 (SCMP_CMP_NE, 0, 0)))
                   != 0)
            return rc;
    }
    if ((rc = refuse_requests (filter, SCMP_SYS (fcntl), denied_fcntls, COUNT (denied_fcntls))) != 0)
        return rc;
    /* F_SETFL with O_ASYNC: a terminal or pipe of the caller's then signals whoever owns it, who may be the caller. */
    return seccomp_rule_add (filter, SCMP_ACT_ERRNO (EPERM), SCMP_SYS (fcntl), 2,
                             SCMP_A1 (SCMP_CMP_MASKED_EQ, UINT32_MAX, F_SETFL),
                             SCMP_A2 (SCMP_CMP_MASKED_EQ, O_ASYNC, O_ASYNC));
}

/* Threads, and no processes: these would be the caller's to reap (CLONE_PARENT), or outlive it. */
static int
add_clone_rules (scmp_filter_ctx filter)
{
    return seccomp_rule_add (filter, SCMP_ACT_ERRNO (EPERM), SCMP_SYS (clone), 1,
                             SCMP_A0 (SCMP_CMP_MASKED_EQ, CLONE_THREAD, 0));
}

/* Of the terminals' requests the `count` from `first` on, but the allowed: halved until a half has none of these, so that
 * there are few rules. `count` is a power of two. */
static int
refuse_terminal_ioctls (scmp_filter_ctx filter, uint64_t first, uint64_t count)
{
    bool allowed = false;
    int rc;

    for (size_t i = 0; i < COUNT (allowed_terminal_ioctls); i++)
        allowed = allowed || (allowed_terminal_ioctls[i] & 0xff) / count == first / count;
    if (!allowed)
        return seccomp_rule_add (filter, SCMP_ACT_ERRNO (EPERM), SCMP_SYS (ioctl), 1,
                                 SCMP_A1 (SCMP_CMP_MASKED_EQ, 0xffff - (count - 1), (uint64_t)'T' << 8 | first));
    if (count == 1)
        return 0;
    rc = refuse_terminal_ioctls (filter, first, count / 2);
    return rc != 0 ? rc : refuse_terminal_ioctls (filter, first + count / 2, count / 2);
}

static int
add_ioctl_rules (scmp_filter_ctx filter)
{
    const uint32_t eperm = SCMP_ACT_ERRNO (EPERM);
    const uint64_t type = 0xff00;
    int rc = 0;

    for (size_t i = 0; rc == 0 && i < COUNT (denied_ioctl_types); i++)
        rc = seccomp_rule_add (filter, eperm, SCMP_SYS (ioctl), 1,
                               SCMP_A1 (SCMP_CMP_MASKED_EQ, type, denied_ioctl_types[i] << 8));
    return rc != 0 ? rc : refuse_terminal_ioctls (filter, 0, 0x100);
}

static const int sockets[] = { SCMP_SYS (socket), SCMP_SYS (socketpair) };

/* Unix sockets are how NVML talks to nvidia-persistenced, and does so for a setter only. But a process of root's gets
 * from others of them (a container engine's, systemd's) whatever it asks for. A filter sees no addresses: so the
 * call that names one is refused, and with datagrams, which can carry one, the kind of socket. */
static int
add_socket_rules (scmp_filter_ctx filter)
{
    static const uint64_t datagrams[] = { SOCK_DGRAM, SOCK_RAW }; /* AF_UNIX has the one for the other */
    const uint64_t kind = 0xf;                                    /* of the type: the rest is SOCK_CLOEXEC and so on */
    const uint32_t eperm = SCMP_ACT_ERRNO (EPERM);
    int rc = seccomp_rule_add (filter, eperm, SCMP_SYS (connect), 0);

    for (size_t i = 0; rc == 0 && i < 4; i++)
        rc = seccomp_rule_add (filter, eperm, sockets[i / 2], 1, SCMP_A1 (SCMP_CMP_MASKED_EQ, kind, datagrams[i % 2]));
    return rc;
}

/* GUARD only. There the host's /dev is what the library sees, and a worker of root's may write to it without any
 * capability, for the folder is root's: NVML makes /dev/nvidia-caps and replaces links in /dev/char. A filter sees no
 * paths, so under GUARD no name in any file system is made, changed or removed. NVML's queries need none of that. */
static const int denied_names[] = {
    SCMP_SYS (mkdir),    SCMP_SYS (mkdirat),   SCMP_SYS (rmdir),     SCMP_SYS (unlink),  SCMP_SYS (unlinkat),
    SCMP_SYS (rename),   SCMP_SYS (renameat),  SCMP_SYS (renameat2), SCMP_SYS (link),    SCMP_SYS (linkat),
    SCMP_SYS (symlink),  SCMP_SYS (symlinkat), SCMP_SYS (mknod),     SCMP_SYS (mknodat), SCMP_SYS (creat),
    SCMP_SYS (truncate), SCMP_SYS (bind), /* makes a socket's name */
};

/* Landlock has no say in these. Only a worker that creates nodes, whose modes NVML then sets, needs some of them. */
static const int denied_attributes[] = {
    SCMP_SYS (chmod),       SCMP_SYS (fchmod),       SCMP_SYS (fchmodat),     NR_FCHMODAT2,
    SCMP_SYS (chown),       SCMP_SYS (lchown),       SCMP_SYS (fchown),       SCMP_SYS (fchownat),
    SCMP_SYS (utime),       SCMP_SYS (utimes),       SCMP_SYS (futimesat),    SCMP_SYS (utimensat),
    SCMP_SYS (setxattr),    SCMP_SYS (lsetxattr),    SCMP_SYS (fsetxattr),    NR_SETXATTRAT,
    SCMP_SYS (removexattr), SCMP_SYS (lremovexattr), SCMP_SYS (fremovexattr), NR_REMOVEXATTRAT,
};

/* The bits that would lend root's rights to whoever runs the file. */
static int
add_mode_rules (scmp_filter_ctx filter)
{
    static const struct {
        int call;
        unsigned int mode_arg;
    } calls[] = {
        { SCMP_SYS (chmod), 1 },
        { SCMP_SYS (fchmod), 1 },
        { SCMP_SYS (fchmodat), 2 },
        { NR_FCHMODAT2, 2 },
    };
    static const uint64_t bits[] = { S_ISUID, S_ISGID };

    for (size_t i = 0; i < 2 * COUNT (calls); i++) {
        const struct scmp_arg_cmp has_bit =
            SCMP_CMP (calls[i / 2].mode_arg, SCMP_CMP_MASKED_EQ, bits[i % 2], bits[i % 2]);
        int rc = seccomp_rule_add_array (filter, SCMP_ACT_ERRNO (EPERM), calls[i / 2].call, 1, &has_bit);

        if (rc != 0)
            return rc;
    }
    return 0;
}

static int
add_attribute_rules (scmp_filter_ctx filter, bool may_change)
{
    if (may_change)
        return add_mode_rules (filter);
    return refuse (filter, denied_attributes, COUNT (denied_attributes));
}

static int
add_name_rules (scmp_filter_ctx filter)
{
    const uint32_t eperm = SCMP_ACT_ERRNO (EPERM);
    const uint64_t nameless = O_TMPFILE & ~O_DIRECTORY; /* the bit of its own */
    int rc;

    if ((rc = refuse (filter, denied_names, COUNT (denied_names))) != 0)
        return rc;
    if ((rc = seccomp_rule_add (filter, eperm, SCMP_SYS (open), 1, SCMP_A1 (SCMP_CMP_MASKED_EQ, nameless, nameless)))
            != 0
        || (rc = seccomp_rule_add (filter, eperm, SCMP_SYS (openat), 1,
                                   SCMP_A2 (SCMP_CMP_MASKED_EQ, nameless, nameless)))
               != 0)
        return rc;
    if ((rc = seccomp_rule_add (filter, eperm, SCMP_SYS (open), 1, SCMP_A1 (SCMP_CMP_MASKED_EQ, O_CREAT, O_CREAT))) != 0
        || (rc = seccomp_rule_add (filter, eperm, SCMP_SYS (openat), 1, SCMP_A2 (SCMP_CMP_MASKED_EQ, O_CREAT, O_CREAT)))
               != 0)
        return rc;
    /* As clone3: its flags are in memory. */
    return seccomp_rule_add (filter, SCMP_ACT_ERRNO (ENOSYS), SCMP_SYS (openat2), 0);
}

static int
add_library_rules (scmp_filter_ctx filter, unsigned int variant)
{
    int rc;

    if ((rc = refuse (filter, denied_library, COUNT (denied_library))) != 0 || (rc = add_process_rules (filter)) != 0
        || (rc = add_clone_rules (filter)) != 0 || (rc = add_ioctl_rules (filter)) != 0
        || (rc = refuse_but (filter, sockets, COUNT (sockets), AF_UNIX)) != 0
        || (rc = add_attribute_rules (filter, (variant & NVS_DENYLIST_MKNOD) != 0)) != 0)
        return rc;
    if ((variant & NVS_DENYLIST_PRIVILEGED) == 0 && (rc = add_socket_rules (filter)) != 0)
        return rc;
    return (variant & NVS_DENYLIST_GUARD) != 0 ? add_name_rules (filter) : 0;
}

/* The native architecture is in a new filter already; calls of any other (i386, x32) get EPERM, the same as what is
 * refused: to kill would let a stray int 0x80 end the worker. */
static int
write_list (unsigned int variant, int fd)
{
    scmp_filter_ctx filter = seccomp_init (SCMP_ACT_ALLOW);
    int rc;

    if (filter == NULL)
        return -ENOMEM;
    if ((rc = seccomp_attr_set (filter, SCMP_FLTATR_ACT_BADARCH, SCMP_ACT_ERRNO (EPERM))) == 0
        && (rc = add_rules (filter, variant)) == 0
        && (variant == NVS_DENYLIST_PROGRAM || (rc = add_library_rules (filter, variant)) == 0))
        rc = seccomp_export_bpf (filter, fd);
    seccomp_release (filter);
    return rc;
}

/* ---- the C source of the programs --------------------------------------------------------------------- */

static int
print_list (unsigned int variant)
{
    struct sock_filter code[NVS_DENYLIST_MAX + 1];
    FILE *file = tmpfile ();
    unsigned int selves = 0;
    size_t length;
    int rc;

    if (file == NULL)
        return -errno;
    rc = write_list (variant, fileno (file));
    rewind (file);
    length = rc == 0 ? fread (code, sizeof *code, NVS_DENYLIST_MAX + 1, file) : 0;
    (void)fclose (file);
    if (rc != 0)
        return rc;
    if (length == 0 || length > NVS_DENYLIST_MAX)
        return -E2BIG;
    (void)printf ("static const struct sock_filter list_%u[] = {\n", variant);
    for (size_t i = 0; i < length; i++) {
        (void)printf ("    { %#x, %u, %u, %#x },\n", code[i].code, code[i].jt, code[i].jf, code[i].k);
        selves += code[i].code == NVS_DENYLIST_COMPARE && code[i].k == NVS_DENYLIST_SELF;
    }
    (void)printf ("};\n\n");
    /* libseccomp has all calls that take a process share one comparison, and may do otherwise: but there must be some. */
    return (selves > 0) == (variant != NVS_DENYLIST_PROGRAM) ? 0 : -EDOM;
}

int
main (void)
{
    (void)printf ("/* Made by denylist.c. */\n");
    for (unsigned int variant = 0; variant < NVS_DENYLISTS; variant++) {
        int rc = print_list (variant);

        if (rc != 0) {
            (void)fprintf (stderr, "list %u: %s\n", variant, strerror (-rc));
            return EXIT_FAILURE;
        }
    }
    (void)printf ("static const struct {\n    const struct sock_filter *code;\n    unsigned short length;\n"
                  "} nvs_denylists[NVS_DENYLISTS] = {\n");
    for (unsigned int variant = 0; variant < NVS_DENYLISTS; variant++)
        (void)printf ("    { list_%u, sizeof list_%u / sizeof *list_%u },\n", variant, variant, variant);
    (void)printf ("};\n");
    return fflush (stdout) == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
