/* SPDX-License-Identifier: Apache-2.0 */
#include "namespace.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "cleanup.h"
#include "error.h"

static const char *
user_remedy (int err)
{
    switch (err) {
    case ENOSYS: /* what the seccomp profiles of podman and CRI-O answer to what they do not know */
    case EPERM:
        return "unprivileged user namespaces are refused here: set sysctl kernel.unprivileged_userns_clone=1 or "
               "kernel.apparmor_restrict_unprivileged_userns=0 where they exist, in a container use a seccomp profile "
               "that allows unshare, and note that the kernel refuses it inside a chroot";
    case ENOSPC:
        return "the limit of user namespaces is reached: raise sysctl user.max_user_namespaces (0 disables them)";
    case EUSERS: return "user namespaces are nested too deeply (32 levels)";
    case EINVAL: return "this kernel is built without user namespaces (CONFIG_USER_NS)";
    default: return "cannot make a user namespace";
    }
}

/* A step of its own, and not one unshare of both, so that the error tells which of the two was refused. */
int
nvs_namespace_user (struct nvs_error *error)
{
    if (unshare (CLONE_NEWUSER) != 0) {
        int err = errno;

        return nvs_fail (error, NVS_STEP_USER_NS, err, NULL, "%s", user_remedy (err));
    }
    return 0;
}

static const char *
mount_remedy (int err)
{
    switch (err) {
    case ENOSYS:
    case EPERM:
        return "a mount namespace needs CAP_SYS_ADMIN, and in a container a seccomp profile and an LSM policy that "
               "allow it";
    case ENOSPC: return "the limit of mount namespaces is reached: raise sysctl user.max_mnt_namespaces";
    default: return "cannot make a mount namespace";
    }
}

static const char *
propagation_remedy (int err)
{
    switch (err) {
    case EINVAL:
        return "the root folder is not a mount point (a chroot?), so the propagation of its mount cannot be cut from "
               "here; use isolation guard";
    case ENOSYS:
    case EPERM:
    case EACCES:
        return "mounting is refused although the namespace was made: by a seccomp profile without mount, an AppArmor or "
               "SELinux policy, or sysctl kernel.apparmor_restrict_unprivileged_userns";
    default: return "cannot make the mounts slaves";
    }
}

static int
write_proc (const char *path, const char *text, struct nvs_error *error)
{
    int fd = open (path, O_WRONLY | O_CLOEXEC);
    int err = errno;
    ssize_t written;

    if (fd >= 0) {
        written = write (fd, text, strlen (text));
        err = errno;
        (void)close (fd);
        if (written == (ssize_t)strlen (text))
            return 0;
    }
    return nvs_fail (error, NVS_STEP_ID_MAP, err, path, "%s",
                     err == EPERM || err == EACCES
                         ? "the kernel refused the id map: see sysctl kernel.apparmor_restrict_unprivileged_userns, "
                           "whether the program's file can be read by this user, and whether root has CAP_SETFCAP"
                         : "cannot write the id map");
}

/* The caller's own ids, mapped to themselves: NVML then sees the uid that it would see outside, and files look as they
 * do there. setgroups must be denied first; the kernel demands it for a gid_map without privilege since Linux 3.19,
 * and older ones do not have the file. */
int
nvs_namespace_id_map (uid_t uid, gid_t gid, struct nvs_error *error)
{
    char map[64];

    if (write_proc ("/proc/self/setgroups", "deny", error) != 0 && error->err != ENOENT)
        return -1;
    (void)snprintf (map, sizeof map, "%u %u 1", uid, uid);
    if (write_proc ("/proc/self/uid_map", map, error) != 0)
        return -1;
    (void)snprintf (map, sizeof map, "%u %u 1", gid, gid);
    return write_proc ("/proc/self/gid_map", map, error);
}

/* Proved at once: were we still in the caller's namespace, the next step would already change the host's mounts. */
int
nvs_namespace_mount (struct nvs_error *error)
{
    uint64_t before = nvs_namespace_mount_id ();
    int rc = unshare (CLONE_NEWNS);
    int err = errno;

    if (rc != 0)
        return nvs_fail (error, NVS_STEP_MOUNT_NS, err, NULL, "%s", mount_remedy (err));
    if (before == 0)
        return nvs_fail (error, NVS_STEP_MOUNT_NS, ENOENT, "/proc/self/ns/mnt",
                         "without /proc nothing proves that mounts made here stay here; mount /proc for this pid "
                         "namespace, or use isolation guard");
    if (nvs_namespace_mount_id () == before)
        return nvs_fail (error, NVS_STEP_MOUNT_NS, 0, "/proc/self/ns/mnt", "unshare had no effect");
    return 0;
}

/* Whether a line of mountinfo has the optional field "shared:N". The optional fields are the seventh and
 * following, up to a lone "-". Fields hold no blanks (the kernel writes \040), so that a path cannot fake one. */
static bool
is_shared (char *line)
{
    char *rest = NULL;
    unsigned int number = 0;

    for (char *field = strtok_r (line, " ", &rest); field != NULL; field = strtok_r (NULL, " ", &rest)) {
        if (++number <= 6)
            continue;
        if (strcmp (field, "-") == 0)
            return false;
        if (strncmp (field, "shared:", 7) == 0)
            return true;
    }
    return false;
}

static void
free_text (char **text)
{
    free (*text);
}

/* The id, in mountinfo, of the mount that /dev is in: the topmost, where several lie on each other. 0 if nothing tells. */
static unsigned int
dev_mount_id (void)
{
    __attribute__ ((cleanup (nvs_close_fd))) int dev = open ("/dev", O_PATH | O_DIRECTORY | O_CLOEXEC);
    __attribute__ ((cleanup (nvs_close_file))) FILE *file = NULL;
    unsigned int id = 0;
    char line[128];

    (void)snprintf (line, sizeof line, "/proc/self/fdinfo/%d", dev);
    if (dev < 0 || (file = fopen (line, "re")) == NULL)
        return 0;
    while (fgets (line, sizeof line, file) != NULL)
        if (sscanf (line, "mnt_id: %u", &id) == 1)
            break;
    return id;
}

/* Whether this line is that mount's, and /dev is where it is mounted: the first field, and the fifth. */
static bool
is_dev_mount (const char *line, unsigned int id)
{
    unsigned int number = 0;
    int at = 0;

    return sscanf (line, "%u %*u %*s %*s %n", &number, &at) == 1 && at > 0 && number == id
           && strncmp (line + at, "/dev ", 5) == 0;
}

/* The proof. That mount() returned 0 is not one: an LSM may answer for the kernel, and a mount may have arrived. */
static int
prove_nothing_shared (bool dev_alone, struct nvs_error *error)
{
    static const char path[] = "/proc/self/mountinfo";
    __attribute__ ((cleanup (nvs_close_file))) FILE *file = fopen (path, "re");
    __attribute__ ((cleanup (free_text))) char *line = NULL;
    size_t size = 0;
    const unsigned int id = dev_alone ? dev_mount_id () : 0;
    unsigned int count = 0;
    struct statfs fs;
    int err = errno;

    if (file == NULL)
        return nvs_fail (error, NVS_STEP_PROPAGATION, err, path,
                         "without the mount table nothing proves that mounts made here stay here");
    if (fstatfs (fileno (file), &fs) != 0 || fs.f_type != PROC_SUPER_MAGIC)
        return nvs_fail (error, NVS_STEP_PROPAGATION, ENOTSUP, path, "this is not the kernel's /proc");
    while (getline (&line, &size, file) > 0) {
        if (dev_alone && !is_dev_mount (line, id))
            continue;
        count++;
        if (is_shared (line))
            return nvs_fail (error, NVS_STEP_PROPAGATION, EBUSY, path,
                             "a mount is still shared with the outside although propagation was cut (line %u)", count);
    }
    err = errno;
    if (dev_alone && ferror (file) == 0 && count == 0)
        return nvs_fail (
            error, NVS_STEP_PROPAGATION, 0, "/dev",
            "propagation can be kept only where /dev is a mount of its own, as in containers and on hosts");
    if (ferror (file) != 0 || count == 0)
        return nvs_fail (error, NVS_STEP_PROPAGATION, err, path, "the mount table cannot be read");
    return 0;
}

/* Slave, not private: a driver container's mounts, made later, still arrive here, and nothing goes out. This stands
 * before the first mount, for in a shared tree the tmpfs would land on the host's /dev as well. */
int
nvs_namespace_propagation (struct nvs_error *error)
{
    if (mount (NULL, "/", NULL, MS_SLAVE | MS_REC, NULL) != 0) {
        int err = errno;

        return nvs_fail (error, NVS_STEP_PROPAGATION, err, "/", "%s", propagation_remedy (err));
    }
    return prove_nothing_shared (false, error);
}

/* What is mounted on /dev then has the slave for its parent, and stays here: how a mount spreads is up to the one that it
 * is mounted on. */
int
nvs_namespace_propagation_of_dev (struct nvs_error *error)
{
    if (mount (NULL, "/dev", NULL, MS_SLAVE, NULL) != 0) {
        int err = errno;

        return nvs_fail (error, NVS_STEP_PROPAGATION, err, "/dev", "%s",
                         err == EINVAL ? "propagation can be kept only where /dev is a mount of its own, as in "
                                         "containers and on hosts"
                                       : propagation_remedy (err));
    }
    return prove_nothing_shared (true, error);
}

uint64_t
nvs_namespace_mount_id (void)
{
    struct stat st;

    return stat ("/proc/self/ns/mnt", &st) == 0 ? (uint64_t)st.st_ino : 0;
}
