/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Capabilities and seccomp leave gaps: a filter sees no paths, and a process of root's without any capability still
 * owns root's files, among them those under /proc/sys, and may look into processes of root's that have no
 * capability either. Through /proc/PID/root of such a process it would even get at the host's /dev. Landlock
 * closes this, for it knows paths and processes, and needs no privilege. In a domain, whatever that is for, no process
 * outside can be traced, whatever its user: this is also what the kernel asks before it shows memory, descriptors, root
 * and working folder in /proc.
 *
 * Besides, inside the worker's domain
 *   - files are written to, and names are made and removed, in the private /dev only; under GUARD, where /dev is the
 *     host's, only nodes that NVML needs are written to. Reading is as before;
 *   - no process outside gets a signal, and no socket with an abstract name is reached (both since Linux 6.12).
 *
 * And inside a program's, which writes where it could before, under GUARD names are made, moved and removed everywhere
 * but in /dev, and there in the folders that are meant for it. The host's is root's, so that a program of root's may make
 * links, folders and files there without any capability: NVML makes /dev/nvidia-caps, and replaces links in /dev/char. The
 * worker's filter refuses names everywhere, which no ordinary program survives.
 *
 * Not every kernel has it (Linux 5.13; RHEL's and others' later, and the boot parameter lsm= decides). It is a second
 * lock and not what the promises for the host's /dev rest on, so that without it worker and program start all the same.
 */
#include "landlock.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cleanup.h"
#include "error.h"
#include "syscalls.h"

/* The interface, here and not from <linux/landlock.h>, which older systems lack or have without the newer part. */
#define CREATE_VERSION 1u
#define RULE_PATH      1

struct ruleset {
    uint64_t access_files;
    uint64_t access_network;
    uint64_t scopes; /* version 6 */
};

struct path_rule {
    uint64_t allowed;
    int32_t parent;
} __attribute__ ((packed));

#define MAY_WRITE      (UINT64_C (1) << 1)
#define MAY_MAKE_BLOCK (UINT64_C (1) << 11)
#define MAY_NAME       (UINT64_C (0x1ff) << 4) /* remove folder and file, make each of seven kinds */
#define MAY_MOVE       (UINT64_C (1) << 13)    /* from one folder to another: version 2 */
#define MAY_TRUNCATE   (UINT64_C (1) << 14)    /* version 3 */
#define OF_FILES       (MAY_WRITE | MAY_TRUNCATE)
#define SCOPE_ABSTRACT (UINT64_C (1) << 0) /* version 6 */
#define SCOPE_SIGNALS  (UINT64_C (1) << 1)

/* ---- domains ------------------------------------------------------------------------------------------ */

/* Below 1 where there is none. ENOSYS: not built in; EOPNOTSUPP: switched off; else an outer filter, which does not
 * know it. */
static long
kernel_version (void)
{
    return nvs_sys_landlock_create (NULL, 0, CREATE_VERSION);
}

/* An older kernel takes the longer structure as long as what it does not know is 0. */
static int
make_ruleset (const struct ruleset *wanted, long version, struct nvs_error *error)
{
    const int ruleset = (int)nvs_sys_landlock_create (wanted, sizeof *wanted, 0);
    const int err = errno;

    if (ruleset < 0)
        (void)nvs_fail (error, NVS_STEP_LANDLOCK, err, NULL, "cannot make a Landlock ruleset (version %ld)", version);
    return ruleset;
}

/* Below the folder, or to the node. That a path is not there is no failure, nor is a file where the rights are those of
 * folders: for it they are none, which the kernel has no rule for. */
static int
allow (int ruleset, int folder, const char *path, uint64_t access, struct nvs_error *error)
{
    __attribute__ ((cleanup (nvs_close_fd))) int fd = openat (folder, path, O_PATH | O_CLOEXEC);
    struct path_rule rule = { .allowed = access, .parent = fd };
    struct stat st;
    int err;

    if (fd < 0 || fstat (fd, &st) != 0 || S_ISBLK (st.st_mode))
        return 0;
    if (!S_ISDIR (st.st_mode))
        rule.allowed &= OF_FILES;
    if (rule.allowed != 0 && nvs_sys_landlock_add_rule (ruleset, RULE_PATH, &rule) != 0) {
        err = errno;
        return nvs_fail (error, NVS_STEP_LANDLOCK, err, path, "cannot add the path to the Landlock ruleset");
    }
    return 0;
}

static int
enter (int ruleset, bool *entered, struct nvs_error *error)
{
    *entered = nvs_sys_landlock_restrict (ruleset) == 0;
    if (!*entered) {
        int err = errno;

        if (err != E2BIG) /* the caller is inside 16 of them already, the kernel's limit */
            return nvs_fail (error, NVS_STEP_LANDLOCK, err, NULL, "cannot enter the Landlock domain");
    }
    return 0;
}

/* ---- the worker's ------------------------------------------------------------------------------------- */

/* GUARD: of the host's /dev the nodes that NVML opens, as they are now, and never disks. Those of a GPU that
 * comes later are for the next worker, as with USER. */
static int
allow_nodes (int ruleset, uint64_t write, struct nvs_error *error)
{
    static const char *const base[] = { "null", "zero", "full", "random", "urandom", "tty", "ptmx", "pts", "dxg" };
    __attribute__ ((cleanup (nvs_close_folder))) DIR *entries = opendir ("/dev");
    const struct dirent *entry;

    if (entries == NULL)
        return 0; /* then none of them can be opened either */
    for (size_t i = 0; i < sizeof base / sizeof *base; i++)
        if (allow (ruleset, dirfd (entries), base[i], write, error) != 0)
            return -1;
    while ((entry = readdir (entries)) != NULL)
        if (strncmp (entry->d_name, "nvidia", strlen ("nvidia")) == 0
            && allow (ruleset, dirfd (entries), entry->d_name, write, error) != 0)
            return -1;
    return 0;
}

static int
allow_paths (int ruleset, const struct nvs_options *options, uint64_t all, struct nvs_error *error)
{
    const uint64_t write = all & OF_FILES;

    if (options->isolation == NVS_ISOLATION_GUARD) {
        if (allow_nodes (ruleset, write, error) != 0)
            return -1;
    } else if (allow (ruleset, AT_FDCWD, "/dev", all & ~MAY_MAKE_BLOCK, error) != 0)
        return -1;
    /* NVML's setters remove and rescan PCI devices, and bring memory of GPUs online, through files. */
    if ((options->flags & NVS_START_PRIVILEGED) == 0)
        return 0;
    return allow (ruleset, AT_FDCWD, "/sys", write, error) != 0
                   || allow (ruleset, AT_FDCWD, "/proc/driver/nvidia", write, error) != 0
               ? -1
               : 0;
}

int
nvs_landlock (struct nvs_policy *policy, struct nvs_error *error)
{
    const long version = kernel_version ();
    struct ruleset wanted = { .access_files = MAY_WRITE | MAY_NAME };
    __attribute__ ((cleanup (nvs_close_fd))) int ruleset = -1;

    policy->landlock = false;
    if (version < 1)
        return 0;
    if (version >= 2)
        wanted.access_files |= MAY_MOVE; /* before it nothing can be moved at all */
    if (version >= 3)
        wanted.access_files |= MAY_TRUNCATE;
    if (version >= 6)
        wanted.scopes = SCOPE_ABSTRACT | SCOPE_SIGNALS;
    ruleset = make_ruleset (&wanted, version, error);
    if (ruleset < 0 || allow_paths (ruleset, policy->options, wanted.access_files, error) != 0)
        return -1;
    return enter (ruleset, &policy->landlock, error);
}

/* ---- a program's -------------------------------------------------------------------------------------- */

/* What Landlock allows it allows for a folder and all below it, so "everywhere but in /dev" is: in each folder of / but
 * dev. It follows that no name is made in / itself, nor in a folder of / that comes later. */
static int
allow_all_but_dev (int ruleset, uint64_t access, struct nvs_error *error)
{
    static const char *const in_dev[] = { "/dev/shm", "/dev/mqueue", "/dev/hugepages", "/dev/pts" };
    __attribute__ ((cleanup (nvs_close_folder))) DIR *entries = opendir ("/");
    const struct dirent *entry;
    struct stat dev;
    struct stat st;
    int err = errno;

    if (entries == NULL)
        return nvs_fail (error, NVS_STEP_LANDLOCK, err, "/", "the root folder cannot be listed");
    if (stat ("/dev", &dev) != 0)
        return 0;
    while ((entry = readdir (entries)) != NULL) {
        if (strcmp (entry->d_name, ".") == 0 || strcmp (entry->d_name, "..") == 0)
            continue;
        /* By what it is, and not by its name alone: it may be there twice. A link leads to another of the folders. */
        if (fstatat (dirfd (entries), entry->d_name, &st, AT_SYMLINK_NOFOLLOW) != 0 || !S_ISDIR (st.st_mode)
            || (st.st_dev == dev.st_dev && st.st_ino == dev.st_ino))
            continue;
        if (allow (ruleset, dirfd (entries), entry->d_name, access, error) != 0)
            return -1;
    }
    for (size_t i = 0; i < sizeof in_dev / sizeof *in_dev; i++)
        if (allow (ruleset, AT_FDCWD, in_dev[i], access, error) != 0)
            return -1;
    return 0;
}

int
nvs_landlock_program (enum nvs_isolation isolation, struct nvs_error *error)
{
    const long version = kernel_version ();
    struct ruleset wanted = { .access_files = MAY_MAKE_BLOCK }; /* a domain must be for something */
    __attribute__ ((cleanup (nvs_close_fd))) int ruleset = -1;
    bool entered;

    if (version < 1)
        return 0;
    if (isolation == NVS_ISOLATION_GUARD)
        wanted.access_files = version >= 2 ? MAY_NAME | MAY_MOVE : MAY_NAME;
    ruleset = make_ruleset (&wanted, version, error);
    if (ruleset < 0
        || (isolation == NVS_ISOLATION_GUARD
            && allow_all_but_dev (ruleset, wanted.access_files & ~MAY_MAKE_BLOCK, error) != 0))
        return -1;
    return enter (ruleset, &entered, error);
}
