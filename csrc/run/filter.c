/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A list of what is refused, as the worker's, but for whole programs: they start others, have threads and children, send
 * signals, use the network and shared memory, and all of that goes on working. What is closed are the ways to the host's
 * /dev (mounts, namespaces, other processes' memory and descriptors), to the kernel, and around a filter.
 */
#include "filter.h"

#include <errno.h>
#include <sched.h>
#include <seccomp.h>
#include <stddef.h>
#include <sys/ioctl.h>

#include "error.h"

/* Newer than libseccomp's headers may be; from 424 on numbers are the same on every architecture. */
#define NR_MOUNT_SETATTR    442 /* Linux 5.12 */
#define NR_QUOTACTL_FD      443 /* Linux 5.14 */
#define NR_PROCESS_MRELEASE 448 /* Linux 5.15 */
#define NR_OPEN_TREE_ATTR   467 /* Linux 6.15 */

static const int refused[] = {
    /* mounts */
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
    /* other processes */
    SCMP_SYS (ptrace),
    SCMP_SYS (process_vm_readv),
    SCMP_SYS (process_vm_writev),
    SCMP_SYS (process_madvise),
    NR_PROCESS_MRELEASE,
    SCMP_SYS (kcmp),
    SCMP_SYS (pidfd_getfd),
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
    SCMP_SYS (sethostname),
    SCMP_SYS (setdomainname),
    SCMP_SYS (uselib),
    SCMP_SYS (vhangup),
    SCMP_SYS (lookup_dcookie),
    SCMP_SYS (_sysctl),
    SCMP_SYS (fanotify_init),
    /* ways around what a filter sees */
    SCMP_SYS (io_uring_setup),
    SCMP_SYS (io_uring_enter),
    SCMP_SYS (io_uring_register),
    SCMP_SYS (open_by_handle_at),
};

static const uint64_t namespace_flags[] = {
    CLONE_NEWNS, CLONE_NEWCGROUP, CLONE_NEWUTS, CLONE_NEWIPC, CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET,
};

/* The program shares a terminal with who started it: what it puts into the input would be typed by them. */
static const uint64_t refused_ioctls[] = { TIOCSTI, TIOCLINUX };

/* Returns 0 or a negative errno, as libseccomp does. */
static int
add_rules (scmp_filter_ctx filter)
{
    const uint32_t eperm = SCMP_ACT_ERRNO (EPERM);
    int rc;

    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        if ((rc = seccomp_rule_add (filter, eperm, refused[i], 0)) != 0)
            return rc;
    }
    for (size_t i = 0; i < sizeof namespace_flags / sizeof *namespace_flags; i++) {
        uint64_t flag = namespace_flags[i];

        if ((rc = seccomp_rule_add (filter, eperm, SCMP_SYS (clone), 1, SCMP_A0 (SCMP_CMP_MASKED_EQ, flag, flag))) != 0)
            return rc;
    }
    for (size_t i = 0; i < sizeof refused_ioctls / sizeof *refused_ioctls; i++) {
        /* The kernel looks at the lower 32 bits alone. */
        if ((rc = seccomp_rule_add (filter, eperm, SCMP_SYS (ioctl), 1,
                                    SCMP_A1 (SCMP_CMP_MASKED_EQ, UINT32_MAX, refused_ioctls[i])))
            != 0)
            return rc;
    }
    /* Its flags are in memory, where no filter sees them; C libraries fall back on clone. */
    return seccomp_rule_add (filter, SCMP_ACT_ERRNO (ENOSYS), SCMP_SYS (clone3), 0);
}

int
nvs_filter_program (struct nvs_error *error)
{
    scmp_filter_ctx filter = seccomp_init (SCMP_ACT_ALLOW);
    int rc;

    if (filter == NULL)
        return nvs_fail (error, NVS_STEP_SECCOMP, ENOMEM, NULL, "no memory for the seccomp filter");
    if ((rc = seccomp_attr_set (filter, SCMP_FLTATR_ACT_BADARCH, SCMP_ACT_ERRNO (EPERM))) == 0
        && (rc = seccomp_attr_set (filter, SCMP_FLTATR_CTL_NNP, 0)) == 0 && (rc = add_rules (filter)) == 0)
        rc = seccomp_load (filter);
    seccomp_release (filter);
    if (rc != 0)
        return nvs_fail (error, NVS_STEP_SECCOMP, -rc, NULL, "cannot install the seccomp filter of --lockdown");
    return 0;
}
