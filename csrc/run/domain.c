/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two gaps that capabilities and filters leave for a program of root's:
 *
 *   - Under GUARD it has the host's /dev, which is root's, so that it may make links, folders and files there without
 *     any capability: NVML makes /dev/nvidia-caps, and replaces links in /dev/char. The worker's filter refuses names
 *     everywhere, which no ordinary program survives. Landlock knows paths: names can be made, moved and removed
 *     everywhere but in /dev, and there in the folders that are meant for it.
 *   - With --lockdown it could look into processes of root's that have no capabilities either, and through
 *     /proc/PID/root reach the host's /dev. In a domain, whatever it is for, nothing outside can be traced, which is what
 *     the kernel asks before it shows those.
 *
 * What Landlock allows it allows for a folder and all below it, so "everywhere but in /dev" is: in each folder of / but
 * dev. It follows that no name is made in / itself, nor in a folder of / that comes later.
 *
 * Linux 5.13, if it is switched on; without it the program starts all the same.
 */
#include "domain.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "error.h"
#include "syscalls.h"

/* The interface, here and not from <linux/landlock.h>, which older systems lack. */
#define CREATE_VERSION 1u
#define RULE_PATH      1

struct ruleset {
    uint64_t access_files;
};

struct path_rule {
    uint64_t allowed;
    int32_t parent;
} __attribute__ ((packed));

#define MAKE_BLOCK (UINT64_C (1) << 11)
#define NAMES      (UINT64_C (0x1ff) << 4) /* remove folder and file, make each of seven kinds */
#define MOVE       (UINT64_C (1) << 13)    /* from one folder to another: version 2 */

static void
close_fd (int *fd)
{
    if (*fd >= 0)
        (void)close (*fd);
}

static void
close_folder (DIR **entries)
{
    if (*entries != NULL)
        (void)closedir (*entries);
}

static int
allow_below (int ruleset, int folder, const char *name, uint64_t access, struct nvs_error *error)
{
    __attribute__ ((cleanup (close_fd))) int fd = openat (folder, name, O_PATH | O_DIRECTORY | O_CLOEXEC);
    struct path_rule rule = { .allowed = access, .parent = fd };

    if (fd < 0) /* a file, or gone */
        return 0;
    if (nvs_sys_landlock_add_rule (ruleset, RULE_PATH, &rule) != 0) {
        int err = errno;

        return nvs_fail (error, NVS_STEP_LANDLOCK, err, name, "cannot add the folder to the Landlock ruleset");
    }
    return 0;
}

static int
allow_all_but_dev (int ruleset, uint64_t access, struct nvs_error *error)
{
    static const char *const in_dev[] = { "/dev/shm", "/dev/mqueue", "/dev/hugepages", "/dev/pts" };
    __attribute__ ((cleanup (close_folder))) DIR *entries = opendir ("/");
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
        if (allow_below (ruleset, dirfd (entries), entry->d_name, access, error) != 0)
            return -1;
    }
    for (size_t i = 0; i < sizeof in_dev / sizeof *in_dev; i++)
        if (allow_below (ruleset, AT_FDCWD, in_dev[i], access, error) != 0)
            return -1;
    return 0;
}

int
nvs_domain (enum nvs_isolation isolation, bool *entered, struct nvs_error *error)
{
    const long version = nvs_sys_landlock_create (NULL, 0, CREATE_VERSION);
    struct ruleset wanted = { .access_files = MAKE_BLOCK };
    __attribute__ ((cleanup (close_fd))) int ruleset = -1;
    int err;

    *entered = false;
    if (version < 1) /* not built in, switched off, or unknown to an outer filter */
        return 0;
    if (isolation == NVS_ISOLATION_GUARD)
        wanted.access_files = version >= 2 ? NAMES | MOVE : NAMES;
    ruleset = (int)nvs_sys_landlock_create (&wanted, sizeof wanted, 0);
    if (ruleset < 0) {
        err = errno;
        return nvs_fail (error, NVS_STEP_LANDLOCK, err, NULL, "cannot make a Landlock ruleset (version %ld)", version);
    }
    if (isolation == NVS_ISOLATION_GUARD && allow_all_but_dev (ruleset, wanted.access_files & ~MAKE_BLOCK, error) != 0)
        return -1;
    if (nvs_sys_landlock_restrict (ruleset) != 0) {
        err = errno;
        if (err == E2BIG)
            return 0; /* inside 16 of them already, the kernel's limit */
        return nvs_fail (error, NVS_STEP_LANDLOCK, err, NULL, "cannot enter the Landlock domain");
    }
    *entered = true;
    return 0;
}
