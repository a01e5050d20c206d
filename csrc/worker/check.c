/* SPDX-License-Identifier: Apache-2.0 */
#include "check.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <linux/seccomp.h>
#include <stdbool.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/sysmacros.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "cleanup.h"
#include "error.h"
#include "namespace.h"
#include "syscalls.h"

/* That NVML is told to make no nodes: by the parameters, where there is a driver that has them. */
static int
check_params (struct nvs_error *error)
{
    static const char path[] = "/proc/driver/nvidia/params";
    __attribute__ ((cleanup (nvs_close_file))) FILE *file = fopen (path, "re");
    int err = errno;
    unsigned int value;
    bool told = false;
    char line[512];

    if (file == NULL)
        return err == ENOENT || err == ENOTDIR ? 0
                                               : nvs_fail (error, NVS_STEP_CHECK, err, path, "cannot read the copy");
    while (fgets (line, sizeof line, file) != NULL) {
        if (sscanf (line, "ModifyDeviceFiles: %u", &value) != 1)
            continue;
        if (value != 0)
            return nvs_fail (error, NVS_STEP_CHECK, 0, path,
                             "the driver's parameters still have NVML make device nodes");
        told = true;
    }
    return told ? 0 : nvs_fail (error, NVS_STEP_CHECK, 0, path, "the driver's parameters do not say ModifyDeviceFiles");
}

int
nvs_check_dev (const struct nvs_policy *policy, uint64_t mount_ns_before, struct nvs_report *report,
               struct nvs_error *error)
{
    struct statfs fs = { 0 };

    report->mount_ns = nvs_namespace_mount_id ();
    if (statfs ("/dev", &fs) == 0)
        report->dev_fs_magic = (uint64_t)fs.f_type;
    if (policy->options->isolation == NVS_ISOLATION_GUARD)
        return 0;
    if (report->dev_fs_magic != TMPFS_MAGIC)
        return nvs_fail (error, NVS_STEP_CHECK, 0, "/dev", "the private /dev is not a tmpfs (%#llx)",
                         (unsigned long long)report->dev_fs_magic);
    if (report->mount_ns == 0 || report->mount_ns == mount_ns_before)
        return nvs_fail (error, NVS_STEP_CHECK, 0, "/proc/self/ns/mnt", "the mount namespace is still the caller's");
    /* A program has its /dev for itself, and at MOUNT without --lockdown what it needs to make nodes in it. */
    if (policy->mknod || (policy->program && policy->options->isolation == NVS_ISOLATION_MOUNT))
        return 0;
    if (!policy->program && (fs.f_flags & ST_RDONLY) == 0)
        return nvs_fail (error, NVS_STEP_CHECK, 0, "/dev", "the private /dev is not read-only");
    return check_params (error);
}

int
nvs_check_privileges (const struct nvs_policy *policy, struct nvs_report *report, struct nvs_error *error)
{
    struct nvs_caps caps = { 0 };

    if (nvs_sys_capget (&caps) != 0) {
        int err = errno;

        return nvs_fail (error, NVS_STEP_CHECK, err, NULL, "cannot read the capabilities");
    }
    report->caps_effective = caps.effective;
    report->caps_bounding = nvs_lockdown_bounding ();
    report->no_new_privs = prctl (PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) == 1;
    report->seccomp_mode = (uint32_t)prctl (PR_GET_SECCOMP, 0, 0, 0, 0);
    if (caps.effective != policy->keep_caps || caps.permitted != policy->keep_caps
        || caps.inheritable != (policy->program ? policy->keep_caps : 0))
        return nvs_fail (error, NVS_STEP_CHECK, 0, NULL, "the capabilities are %#llx (permitted %#llx), not %#llx",
                         (unsigned long long)caps.effective, (unsigned long long)caps.permitted,
                         (unsigned long long)policy->keep_caps);
    if (report->no_new_privs != 1)
        return nvs_fail (error, NVS_STEP_CHECK, 0, NULL, "no_new_privs is not set");
    if (report->seccomp_mode != SECCOMP_MODE_FILTER)
        return nvs_fail (error, NVS_STEP_CHECK, 0, NULL, "no seccomp filter is active (mode %u)", report->seccomp_mode);
    return 0;
}

/* Tries what must not work. `folder` -1 asks the filter alone: it answers EPERM before the kernel looks at the
 * descriptor, which it would answer with EBADF, so that nothing can come into being. */
static int
check_refused (int folder, mode_t type, unsigned int major_number, unsigned int minor_number, struct nvs_error *error)
{
    static const char name[] = ".nvsandbox-check";
    // NOLINTNEXTLINE(clang-analyzer-unix.StdCLibraryFunctions): -1 is meant
    int rc = mknodat (folder, name, type | 0600, makedev (major_number, minor_number));
    int err = errno;

    if (rc == 0) {
        (void)unlinkat (folder, name, 0);
        return nvs_fail (error, NVS_STEP_CHECK, 0, "/dev", "a device node %u:%u could be made", major_number,
                         minor_number);
    }
    if (err != EPERM)
        return nvs_fail (error, NVS_STEP_CHECK, err, "/dev", "making a device node %u:%u was not refused by the filter",
                         major_number, minor_number);
    return 0;
}

/* Without effect either way: to write to one's own name is allowed by all but Landlock. */
static int
check_landlock (struct nvs_error *error)
{
    static const char path[] = "/proc/self/comm";
    int fd = open (path, O_WRONLY | O_CLOEXEC);
    int err = errno;

    if (fd >= 0) {
        (void)close (fd);
        return nvs_fail (error, NVS_STEP_CHECK, 0, path, "Landlock is on and a file outside /dev could be opened");
    }
    /* Without /proc (GUARD only) this is ENOENT and proves nothing. */
    if (err != EACCES && err != ENOENT)
        return nvs_fail (error, NVS_STEP_CHECK, err, path, "opening a file outside /dev was not refused by Landlock");
    return 0;
}

/* GUARD: the host's /dev is in reach, so nothing may be made there, folders and links included. */
static int
check_names_refused (struct nvs_error *error)
{
    // NOLINTNEXTLINE(clang-analyzer-unix.StdCLibraryFunctions): -1 is meant
    if (mkdirat (-1, ".nvsandbox-check", 0700) == 0 || errno != EPERM || symlinkat ("x", -1, ".nvsandbox-check") == 0
        || errno != EPERM || openat (-1, ".nvsandbox-check", O_CREAT | O_WRONLY | O_CLOEXEC, 0600) >= 0
        || errno != EPERM)
        return nvs_fail (error, NVS_STEP_CHECK, 0, "/dev",
                         "making a name in the file system was not refused by the filter");
    return 0;
}

int
nvs_check_mknod (const struct nvs_policy *policy, struct nvs_error *error)
{
    int folder = -1;
    int rc;

    /* First without a place to put it, and only where /dev is ours then with one. */
    if (check_refused (-1, S_IFBLK, 8, 0, error) != 0 || check_refused (-1, S_IFCHR, 1, 1, error) != 0
        || (!policy->mknod && check_refused (-1, S_IFCHR, 195, 255, error) != 0))
        return -1;
    if (policy->options->isolation == NVS_ISOLATION_GUARD)
        return policy->program ? 0 : check_names_refused (error);
    folder = open ("/dev", O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (folder < 0) {
        int err = errno;

        return nvs_fail (error, NVS_STEP_CHECK, err, "/dev", "cannot open the private /dev");
    }
    rc = check_refused (folder, S_IFBLK, 8, 0, error);
    (void)close (folder);
    return rc;
}

/* That every step returned 0 is no proof: an LSM or an outer filter can answer in the kernel's place. */
int
nvs_check (const struct nvs_policy *policy, uint64_t mount_ns_before, struct nvs_report *report,
           struct nvs_error *error)
{
    if (nvs_check_dev (policy, mount_ns_before, report, error) != 0
        || nvs_check_privileges (policy, report, error) != 0)
        return -1;
    if (policy->landlock && check_landlock (error) != 0)
        return -1;
    return nvs_check_mknod (policy, error);
}
