/* SPDX-License-Identifier: Apache-2.0 */
#include "lockdown.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/securebits.h>
#include <sched.h>
#include <seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "error.h"
#include "syscalls.h"

#define NVIDIA_MAJOR     195u
#define NVIDIACTL_MINOR  255u
#define MODESET_MINOR    254u
#define CAP_BIT(cap)     (UINT64_C (1) << (cap))
#define CAPS_IN_SETS_MAX 64

/* ---- policy ------------------------------------------------------------------------------------------- */

/* The numbers under which the simulator's nodes go, where no driver has registered any: nvidia, nvidia-caps,
 * nvidia-caps-imex-channels, nvidia-uvm, nvidia-nvswitch. It creates such nodes and opens none. */
static const uint32_t simulated_majors[] = { NVIDIA_MAJOR, 235, 236, 510, 234 };

static void
add_major (struct nvs_policy *policy, uint32_t major_number)
{
    for (uint32_t i = 0; i < policy->majors_count; i++) {
        if (policy->majors[i] == major_number)
            return;
    }
    if (policy->majors_count < NVS_MAJORS_MAX)
        policy->majors[policy->majors_count++] = major_number;
}

/* Calls for each line "NUMBER NAME" of a file such as /proc/devices, up to `end`. */
static void
read_registered (const char *path, const char *end, void (*found) (struct nvs_policy *, unsigned int, const char *),
                 struct nvs_policy *policy)
{
    char line[256];
    FILE *file = fopen (path, "re");

    if (file == NULL)
        return;
    while (fgets (line, sizeof line, file) != NULL && strncmp (line, end, strlen (end)) != 0) {
        unsigned int number;
        char name[128];

        if (sscanf (line, "%u %127s", &number, name) == 2)
            found (policy, number, name);
    }
    (void)fclose (file);
}

static void
found_device (struct nvs_policy *policy, unsigned int number, const char *name)
{
    if (strncmp (name, "nvidia", strlen ("nvidia")) == 0)
        add_major (policy, number);
}

static void
found_misc (struct nvs_policy *policy, unsigned int number, const char *name)
{
    (void)number;
    if (strcmp (name, "dxg") == 0)
        policy->dxg = true;
}

void
nvs_policy_read (struct nvs_policy *policy, const struct nvs_options *options)
{
    struct nvs_caps caps = { 0 };

    *policy = (struct nvs_policy){ .options = options };
    if ((options->flags & NVS_START_SIMULATED) != 0) {
        for (size_t i = 0; i < sizeof simulated_majors / sizeof *simulated_majors; i++)
            add_major (policy, simulated_majors[i]);
    } else {
        read_registered ("/proc/devices", "Block devices:", found_device, policy);
        if (policy->majors_count > 0)
            add_major (policy, NVIDIA_MAJOR);
        read_registered ("/proc/misc", "\n", found_misc, policy);
    }

    if (nvs_sys_capget (&caps) != 0)
        caps.permitted = 0;
    /* In a user namespace the kernel refuses mknod whatever the capability says (Linux: capable(), not ns_capable()),
     * and without a namespace of our own a node would be the host's. */
    policy->mknod = options->isolation == NVS_ISOLATION_MOUNT && policy->majors_count > 0
                    && (caps.permitted & CAP_BIT (CAP_MKNOD)) != 0;
    if (policy->mknod)
        policy->keep_caps |= CAP_BIT (CAP_MKNOD);
    /* The driver asks for this one in the initial user namespace, so that of our own would be of no use to it. */
    if ((options->flags & NVS_START_PRIVILEGED) != 0 && options->isolation != NVS_ISOLATION_USER)
        policy->keep_caps |= CAP_BIT (CAP_SYS_ADMIN) & caps.permitted;
}

bool
nvs_policy_shows_gpu (const struct nvs_policy *policy, unsigned int minor_number)
{
    const struct nvs_options *options = policy->options;

    if ((options->flags & NVS_START_DEVICES) == 0)
        return true;
    for (uint32_t i = 0; i < options->devices_count; i++) {
        if (options->device_minors[i] == minor_number)
            return true;
    }
    return false;
}

bool
nvs_policy_allows (const struct nvs_policy *policy, dev_t device)
{
    bool listed = false;

    for (uint32_t i = 0; i < policy->majors_count && !listed; i++)
        listed = policy->majors[i] == major (device);
    if (!listed || major (device) != NVIDIA_MAJOR)
        return listed;
    return minor (device) == NVIDIACTL_MINOR || minor (device) == MODESET_MINOR
           || nvs_policy_shows_gpu (policy, minor (device));
}

/* ---- capabilities ------------------------------------------------------------------------------------- */

uint64_t
nvs_lockdown_bounding (void)
{
    uint64_t set = 0;

    /* -1 is for those that the running kernel does not have, and they are the last. */
    for (unsigned int cap = 0; cap < CAPS_IN_SETS_MAX; cap++) {
        int found = prctl (PR_CAPBSET_READ, cap, 0, 0, 0);

        if (found < 0)
            break;
        if (found == 1)
            set |= CAP_BIT (cap);
    }
    return set;
}

/* What is kept must lie in the ambient set to last over execve: root's other way of getting capabilities, by its uid, is
 * closed below. Before the securebits, which forbid to add to it. */
static int
keep_over_exec (uint64_t kept, struct nvs_caps *caps, struct nvs_error *error)
{
    int err;

    caps->inheritable = kept;
    if (nvs_sys_capset (caps) != 0) {
        err = errno;
        return nvs_fail (error, NVS_STEP_CAPS, err, NULL, "cannot make capabilities inheritable");
    }
    for (unsigned int cap = 0; cap < CAPS_IN_SETS_MAX; cap++) {
        if ((kept & CAP_BIT (cap)) != 0 && prctl (PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, cap, 0, 0) != 0) {
            err = errno;
            return nvs_fail (error, NVS_STEP_CAPS, err, NULL, "cannot keep capability %u for the program", cap);
        }
    }
    return 0;
}

/* Everything goes but what is kept. The bounding set and the securebits can be changed only with CAP_SETPCAP, hence
 * before capset; a worker without it has nothing that they could take away, and no_new_privs follows in any case. */
int
nvs_lockdown_caps (struct nvs_policy *policy, struct nvs_error *error)
{
    const unsigned long securebits = SECBIT_NOROOT | SECBIT_NOROOT_LOCKED | SECBIT_NO_SETUID_FIXUP_LOCKED
                                     | SECBIT_KEEP_CAPS_LOCKED | SECBIT_NO_CAP_AMBIENT_RAISE
                                     | SECBIT_NO_CAP_AMBIENT_RAISE_LOCKED;
    struct nvs_caps caps;
    int err;

    if (nvs_sys_capget (&caps) != 0) {
        err = errno;
        return nvs_fail (error, NVS_STEP_CAPS, err, NULL, "cannot read the capabilities");
    }
    if (prctl (PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0) != 0) {
        err = errno;
        return nvs_fail (error, NVS_STEP_CAPS, err, NULL, "cannot clear the ambient capabilities (Linux 4.3)");
    }
    policy->keep_caps &= caps.permitted;
    if (policy->program && keep_over_exec (policy->keep_caps, &caps, error) != 0)
        return -1;
    if ((caps.effective & CAP_BIT (CAP_SETPCAP)) != 0) {
        uint64_t bounding = nvs_lockdown_bounding ();

        for (unsigned int cap = 0; cap < CAPS_IN_SETS_MAX; cap++) {
            if ((bounding & ~policy->keep_caps & CAP_BIT (cap)) == 0)
                continue;
            if (prctl (PR_CAPBSET_DROP, cap, 0, 0, 0) != 0) {
                err = errno;
                return nvs_fail (error, NVS_STEP_CAPS, err, NULL, "cannot drop capability %u from the bounding set",
                                 cap);
            }
        }
        /* A parent may have locked some of the bits differently: then it is at least as strict or not ours to say. */
        if (prctl (PR_SET_SECUREBITS, securebits, 0, 0, 0) != 0 && errno != EPERM) {
            err = errno;
            return nvs_fail (error, NVS_STEP_CAPS, err, NULL, "cannot set the securebits");
        }
    }
    caps = (struct nvs_caps){ .effective = policy->keep_caps,
                              .permitted = policy->keep_caps,
                              .inheritable = policy->program ? policy->keep_caps : 0 };
    if (nvs_sys_capset (&caps) != 0) {
        err = errno;
        return nvs_fail (error, NVS_STEP_CAPS, err, NULL, "cannot drop the capabilities");
    }
    return 0;
}

/* From here on a setuid file, nvidia-modprobe above all, gives nobody privileges. Also what lets a process without
 * CAP_SYS_ADMIN install a seccomp filter, so it comes first. */
int
nvs_lockdown_no_new_privs (struct nvs_error *error)
{
    if (prctl (PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) {
        int err = errno;

        return nvs_fail (error, NVS_STEP_NO_NEW_PRIVS, err, NULL, "cannot set no_new_privs (Linux 3.5)");
    }
    return 0;
}

/* ---- seccomp: the list -------------------------------------------------------------------------------- */

/* Newer than the libseccomp headers that we build against may be; from 424 on numbers are the same everywhere. */
#define NR_MOUNT_SETATTR    442 /* Linux 5.12 */
#define NR_PROCESS_MRELEASE 448 /* Linux 5.15 */
#define NR_QUOTACTL_FD      443 /* Linux 5.14 */
#define NR_OPEN_TREE_ATTR   467 /* Linux 6.15 */
#define NR_FCHMODAT2        452 /* Linux 6.6 */
#define NR_SETXATTRAT       463 /* Linux 6.13 */
#define NR_REMOVEXATTRAT    466 /* Linux 6.13 */

/* Refused whatever the arguments. A list of what is denied, for what a closed library calls cannot be known:
 * a list of what is allowed would break with the next driver. */
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
    SCMP_SYS (pidfd_send_signal),
    SCMP_SYS (tkill), /* names a thread without its process; tgkill is what C libraries raise signals with */
    SCMP_SYS (migrate_pages),
    /* the caller's System V objects and message queues: found by number or name, and of the same user */
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
    SCMP_SYS (personality),
    SCMP_SYS (iopl),
    SCMP_SYS (ioperm),
    SCMP_SYS (settimeofday),
    SCMP_SYS (clock_settime),
    SCMP_SYS (clock_adjtime),
    SCMP_SYS (adjtimex),
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
    SCMP_SYS (name_to_handle_at),
};

static const uint64_t namespace_flags[] = {
    CLONE_NEWNS, CLONE_NEWCGROUP, CLONE_NEWUTS, CLONE_NEWIPC, CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET,
};

/* The kernel looks at the lower 32 bits of an ioctl's request, so the filter must not look at more. The latter two, as
 * F_SETOWN, have signals sent to another process when a descriptor becomes ready. */
static const uint64_t denied_ioctls[] = { TIOCSTI, TIOCLINUX, FIOSETOWN, SIOCSPGRP };
static const uint64_t denied_fcntls[] = { F_SETOWN, F_SETOWN_EX };

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

/* Of others' processes nothing is changed: signals go to this one, settings are those of the calling thread (0; a
 * filter cannot tell its own threads' numbers from others). A child of the library's cannot signal itself, with
 * which abort copes. */
static int
add_process_rules (scmp_filter_ctx filter)
{
    const uint32_t eperm = SCMP_ACT_ERRNO (EPERM);
    const uint64_t self = (uint64_t)getpid ();
    int rc;

    for (size_t i = 0; i < sizeof signals_to / sizeof *signals_to; i++) {
        if ((rc = seccomp_rule_add (filter, eperm, signals_to[i], 1, SCMP_A0 (SCMP_CMP_NE, self, 0))) != 0)
            return rc;
    }
    for (size_t i = 0; i < sizeof settings_of / sizeof *settings_of; i++) {
        if ((rc = seccomp_rule_add (filter, eperm, settings_of[i], 1, SCMP_A0 (SCMP_CMP_NE, 0, 0))) != 0)
            return rc;
    }
    for (size_t i = 0; i < sizeof priorities / sizeof *priorities; i++) {
        /* Which: a process (0 or, for ioprio_set, 1), a group, a user's all. Never the group or the user. */
        const uint64_t process = priorities[i] == SCMP_SYS (setpriority) ? PRIO_PROCESS : 1;

        if ((rc = seccomp_rule_add (filter, eperm, priorities[i], 1, SCMP_A0 (SCMP_CMP_NE, process, 0))) != 0
            || (rc = seccomp_rule_add (filter, eperm, priorities[i], 1, SCMP_A1 (SCMP_CMP_NE, 0, 0))) != 0)
            return rc;
    }
    for (size_t i = 0; i < sizeof denied_fcntls / sizeof *denied_fcntls; i++) {
        if ((rc = seccomp_rule_add (filter, eperm, SCMP_SYS (fcntl), 1,
                                    SCMP_A1 (SCMP_CMP_MASKED_EQ, UINT32_MAX, denied_fcntls[i])))
            != 0)
            return rc;
    }
    return 0;
}

/* Returns 0 or a negative errno, as libseccomp does. */
static int
add_rules (scmp_filter_ctx filter)
{
    const uint32_t eperm = SCMP_ACT_ERRNO (EPERM);
    int rc;

    for (size_t i = 0; i < sizeof denied / sizeof *denied; i++) {
        /* A call that this architecture does not have is a negative number here, and is no rule. */
        if ((rc = seccomp_rule_add (filter, eperm, denied[i], 0)) != 0)
            return rc;
    }
    for (size_t i = 0; i < sizeof namespace_flags / sizeof *namespace_flags; i++) {
        uint64_t flag = namespace_flags[i];

        if ((rc = seccomp_rule_add (filter, eperm, SCMP_SYS (clone), 1, SCMP_A0 (SCMP_CMP_MASKED_EQ, flag, flag))) != 0)
            return rc;
    }
    /* clone3 has its flags in memory, where no filter sees them. ENOSYS makes the C library fall back on clone. */
    if ((rc = seccomp_rule_add (filter, SCMP_ACT_ERRNO (ENOSYS), SCMP_SYS (clone3), 0)) != 0)
        return rc;
    for (size_t i = 0; i < sizeof denied_ioctls / sizeof *denied_ioctls; i++) {
        if ((rc = seccomp_rule_add (filter, eperm, SCMP_SYS (ioctl), 1,
                                    SCMP_A1 (SCMP_CMP_MASKED_EQ, UINT32_MAX, denied_ioctls[i])))
            != 0)
            return rc;
    }
    if ((rc = seccomp_rule_add (filter, eperm, SCMP_SYS (socket), 1, SCMP_A0 (SCMP_CMP_NE, AF_UNIX, 0))) != 0)
        return rc;
    return seccomp_rule_add (filter, eperm, SCMP_SYS (socketpair), 1, SCMP_A0 (SCMP_CMP_NE, AF_UNIX, 0));
}

/* Unix sockets are how NVML talks to nvidia-persistenced, and does so for a setter only. But a process of root's gets
 * from others of them (a container engine's, systemd's) whatever it asks for. A filter sees no addresses: so the
 * call that names one is refused, and with datagrams, which can carry one, the kind of socket. */
static int
add_socket_rules (scmp_filter_ctx filter)
{
    static const int calls[] = { SCMP_SYS (socket), SCMP_SYS (socketpair) };
    static const uint64_t datagrams[] = { SOCK_DGRAM, SOCK_RAW }; /* AF_UNIX has the one for the other */
    const uint64_t kind = 0xf;                                    /* of the type: the rest is SOCK_CLOEXEC and so on */
    const uint32_t eperm = SCMP_ACT_ERRNO (EPERM);
    int rc = seccomp_rule_add (filter, eperm, SCMP_SYS (connect), 0);

    for (size_t i = 0; rc == 0 && i < 4; i++)
        rc = seccomp_rule_add (filter, eperm, calls[i / 2], 1, SCMP_A1 (SCMP_CMP_MASKED_EQ, kind, datagrams[i % 2]));
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

    for (size_t i = 0; i < 2 * sizeof calls / sizeof *calls; i++) {
        const struct scmp_arg_cmp has_bit =
            SCMP_CMP (calls[i / 2].mode_arg, SCMP_CMP_MASKED_EQ, bits[i % 2], bits[i % 2]);
        int rc = seccomp_rule_add_array (filter, SCMP_ACT_ERRNO (EPERM), calls[i / 2].call, 1, &has_bit);

        if (rc != 0)
            return rc;
    }
    return 0;
}

static int
add_attribute_rules (scmp_filter_ctx filter, const struct nvs_policy *policy)
{
    if (policy->mknod)
        return add_mode_rules (filter);
    for (size_t i = 0; i < sizeof denied_attributes / sizeof *denied_attributes; i++) {
        int rc = seccomp_rule_add (filter, SCMP_ACT_ERRNO (EPERM), denied_attributes[i], 0);

        if (rc != 0)
            return rc;
    }
    return 0;
}

static int
add_name_rules (scmp_filter_ctx filter)
{
    const uint32_t eperm = SCMP_ACT_ERRNO (EPERM);
    const uint64_t nameless = O_TMPFILE & ~O_DIRECTORY; /* the bit of its own */
    int rc;

    for (size_t i = 0; i < sizeof denied_names / sizeof *denied_names; i++) {
        if ((rc = seccomp_rule_add (filter, eperm, denied_names[i], 0)) != 0)
            return rc;
    }
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

/* The native architecture is in a new filter already; calls of any other (i386, x32) get EPERM, the same as what is
 * refused: to kill would let a stray int 0x80 end the worker. */
static int
load_list (const struct nvs_policy *policy)
{
    scmp_filter_ctx filter = seccomp_init (SCMP_ACT_ALLOW);
    int rc;

    if (filter == NULL)
        return -ENOMEM;
    if ((rc = seccomp_attr_set (filter, SCMP_FLTATR_ACT_BADARCH, SCMP_ACT_ERRNO (EPERM))) == 0
        && (rc = seccomp_attr_set (filter, SCMP_FLTATR_CTL_NNP, 0)) == 0 && (rc = add_rules (filter)) == 0
        && (rc = add_process_rules (filter)) == 0 && (rc = add_attribute_rules (filter, policy)) == 0
        && ((policy->options->flags & NVS_START_PRIVILEGED) != 0 || (rc = add_socket_rules (filter)) == 0)
        && (policy->options->isolation != NVS_ISOLATION_GUARD || (rc = add_name_rules (filter)) == 0))
        rc = seccomp_load (filter);
    seccomp_release (filter);
    return rc;
}

/* ---- seccomp: mknod ----------------------------------------------------------------------------------- */

/*
 * A filter of its own, by hand: "character devices, but of these majors only" needs several conditions on one
 * argument, which libseccomp has no rule for. The kernel runs both filters and takes the stricter answer.
 *
 *     mode, dev = the arguments of mknod or mknodat; any other call: allow
 *     block device: EPERM.  Not a character device (file, FIFO, socket): allow
 *     dev & mask == value for one of the list: allow.  Else EPERM
 *
 * The kernel takes the lower 32 bits of dev and the lower 16 of mode, and so does this.
 */
#define RULES_MAX  (NVS_MAJORS_MAX + NVS_DEVICES_MAX + 2)
#define FILTER_MAX (24 + 4 * RULES_MAX)

#ifdef __x86_64__
#define NATIVE_ARCH AUDIT_ARCH_X86_64
#else
#define NATIVE_ARCH AUDIT_ARCH_AARCH64
#endif

struct mknod_filter {
    struct sock_filter code[FILTER_MAX];
    unsigned short length;
};

enum {
    MODE_WORD,
    DEV_WORD
}; /* of the filter's scratch memory */

static void
emit (struct mknod_filter *filter, unsigned int code, uint32_t k, unsigned int if_true, unsigned int if_false)
{
    filter->code[filter->length++] =
        (struct sock_filter){ (unsigned short)code, (unsigned char)if_true, (unsigned char)if_false, k };
}

static void
emit_load_args (struct mknod_filter *filter, unsigned int mode_arg, unsigned int dev_arg)
{
    const uint32_t args = (uint32_t)offsetof (struct seccomp_data, args);

    emit (filter, BPF_LD | BPF_W | BPF_ABS, args + 8 * mode_arg, 0, 0);
    emit (filter, BPF_ST, MODE_WORD, 0, 0);
    emit (filter, BPF_LD | BPF_W | BPF_ABS, args + 8 * dev_arg, 0, 0);
    emit (filter, BPF_ST, DEV_WORD, 0, 0);
}

static void
emit_allow_device (struct mknod_filter *filter, uint32_t mask, uint32_t value)
{
    emit (filter, BPF_LD | BPF_MEM, DEV_WORD, 0, 0);
    emit (filter, BPF_ALU | BPF_AND | BPF_K, mask, 0, 0);
    emit (filter, BPF_JMP | BPF_JEQ | BPF_K, value, 0, 1);
    emit (filter, BPF_RET | BPF_K, SECCOMP_RET_ALLOW, 0, 0);
}

/* As the system call has it, which is not how the C library's dev_t has it above 32 bits. */
static uint32_t
device_word (uint32_t major_number, uint32_t minor_number)
{
    return (minor_number & 0xffu) | (major_number & 0xfffu) << 8 | (minor_number & ~0xffu) << 12;
}

static void
emit_allowed_devices (struct mknod_filter *filter, const struct nvs_policy *policy)
{
    const struct nvs_options *options = policy->options;
    const uint32_t major_mask = device_word (0xfff, 0);

    for (uint32_t i = 0; i < policy->majors_count; i++) {
        uint32_t number = policy->majors[i];

        if (number != NVIDIA_MAJOR || (options->flags & NVS_START_DEVICES) == 0) {
            emit_allow_device (filter, major_mask, device_word (number, 0));
            continue;
        }
        emit_allow_device (filter, UINT32_MAX, device_word (NVIDIA_MAJOR, NVIDIACTL_MINOR));
        emit_allow_device (filter, UINT32_MAX, device_word (NVIDIA_MAJOR, MODESET_MINOR));
        for (uint32_t d = 0; d < options->devices_count; d++)
            emit_allow_device (filter, UINT32_MAX, device_word (NVIDIA_MAJOR, options->device_minors[d]));
    }
}

static const char filter_remedy[] = "cannot install the seccomp filter: the kernel needs CONFIG_SECCOMP_FILTER, and an "
                                    "outer seccomp profile must allow the call seccomp";

static int
load_mknod_filter (const struct nvs_policy *policy)
{
    const uint32_t eperm = SECCOMP_RET_ERRNO | (EPERM & SECCOMP_RET_DATA);
    struct mknod_filter filter = { .length = 0 };
    struct sock_fprog program = { .filter = filter.code };

    /* Another architecture's numbers mean other calls; the list's filter refuses all of those. */
    emit (&filter, BPF_LD | BPF_W | BPF_ABS, (uint32_t)offsetof (struct seccomp_data, arch), 0, 0);
    emit (&filter, BPF_JMP | BPF_JEQ | BPF_K, NATIVE_ARCH, 1, 0);
    emit (&filter, BPF_RET | BPF_K, eperm, 0, 0);
    emit (&filter, BPF_LD | BPF_W | BPF_ABS, (uint32_t)offsetof (struct seccomp_data, nr), 0, 0);
#ifdef SYS_mknod
    emit (&filter, BPF_JMP | BPF_JEQ | BPF_K, SYS_mknod, 0, 5);
    emit_load_args (&filter, 1, 2);
    emit (&filter, BPF_JMP | BPF_JA, 6, 0, 0);
#endif
    emit (&filter, BPF_JMP | BPF_JEQ | BPF_K, SYS_mknodat, 1, 0);
    emit (&filter, BPF_RET | BPF_K, SECCOMP_RET_ALLOW, 0, 0);
    emit_load_args (&filter, 2, 3);

    emit (&filter, BPF_LD | BPF_MEM, MODE_WORD, 0, 0);
    emit (&filter, BPF_ALU | BPF_AND | BPF_K, S_IFMT, 0, 0);
    emit (&filter, BPF_JMP | BPF_JEQ | BPF_K, S_IFBLK, 0, 1);
    emit (&filter, BPF_RET | BPF_K, eperm, 0, 0);
    emit (&filter, BPF_JMP | BPF_JEQ | BPF_K, S_IFCHR, 1, 0);
    emit (&filter, BPF_RET | BPF_K, SECCOMP_RET_ALLOW, 0, 0);
    if (policy->mknod)
        emit_allowed_devices (&filter, policy);
    emit (&filter, BPF_RET | BPF_K, eperm, 0, 0);

    program.len = filter.length;
    return nvs_sys_seccomp_filter (&program) == 0 ? 0 : -errno;
}

int
nvs_lockdown_mknod (const struct nvs_policy *policy, struct nvs_error *error)
{
    int rc = load_mknod_filter (policy);

    if (rc != 0)
        return nvs_fail (error, NVS_STEP_SECCOMP, -rc, NULL, "%s", filter_remedy);
    return 0;
}

/* Last, for the steps before need what these filters refuse. There is one thread: the filters need no synchronising,
 * and every thread that NVML and the channels start inherits them. */
int
nvs_lockdown_seccomp (const struct nvs_policy *policy, struct nvs_error *error)
{
    int rc = load_mknod_filter (policy);

    if (rc == 0)
        rc = load_list (policy);
    if (rc != 0)
        return nvs_fail (error, NVS_STEP_SECCOMP, -rc, NULL, "%s", filter_remedy);
    return 0;
}
