/* SPDX-License-Identifier: Apache-2.0 */
/* How many CPUs there are to look with. Not what sched_getaffinity says alone: a container may have all of a machine's CPUs, and of
 * their time one CPU's worth, which looking would use up until the kernel stops both sides for the rest of the period. */
#include "core.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define TEXT_MAX  8192
#define PATH_SIZE 1024

/* A small file as text; false if there is none. Cut off where it is longer. */
static bool
read_text (const char *path, char *text, size_t size)
{
    int fd = open (path, O_RDONLY | O_CLOEXEC | O_NOCTTY);
    size_t done = 0;
    ssize_t n = 0;

    if (fd < 0)
        return false;
    while (done < size - 1 && (n = read (fd, text + done, size - 1 - done)) > 0)
        done += (size_t)n;
    (void)close (fd);
    text[done] = '\0';
    return n >= 0 && done > 0;
}

/* "max 100000" or "50000 100000"; version 1 has the two in files of their own, and -1 for none. In whole CPUs. */
static int
quota_in (const char *folder, bool unified)
{
    char text[64];
    char path[PATH_SIZE + 32];
    char *end = text;
    long long quota;
    long long period;

    (void)snprintf (path, sizeof path, "%s/%s", folder, unified ? "cpu.max" : "cpu.cfs_quota_us");
    if (!read_text (path, text, sizeof text))
        return INT_MAX;
    quota = strtoll (text, &end, 10);
    if (end == text || quota <= 0)
        return INT_MAX;
    if (!unified) {
        (void)snprintf (path, sizeof path, "%s/cpu.cfs_period_us", folder);
        if (!read_text (path, text, sizeof text))
            return INT_MAX;
        end = text;
    }
    period = strtoll (end, NULL, 10);
    if (period <= 0)
        return INT_MAX;
    return quota / period < INT_MAX ? (int)(quota / period) : INT_MAX;
}

/* The least of a group's and those above it. `folder` is the hierarchy's, `group` the path in it, which is cut up. Where this process sees
 * its group by another path than /proc says, as in a container, what the top says is its own. */
static int
quota_up (const char *folder, char *group, bool unified)
{
    char path[PATH_SIZE];
    int least = INT_MAX;

    if (strstr (group, "..") != NULL) /* of a group outside of the cgroup namespace */
        *group = '\0';
    for (;;) {
        char *slash = strrchr (group, '/');
        int quota;

        if (slash != NULL && slash[1] == '\0') /* the top's is "/" */
            *slash = '\0';
        if ((size_t)snprintf (path, sizeof path, "%s%s", folder, group) < sizeof path) {
            quota = quota_in (path, unified);
            if (quota < least)
                least = quota;
        }
        if (*group == '\0')
            return least;
        slash = strrchr (group, '/');
        if (slash == NULL)
            return least;
        *slash = '\0';
    }
}

static bool
has_cpu (char *controllers)
{
    char *rest = NULL;

    for (char *name = strtok_r (controllers, ",", &rest); name != NULL; name = strtok_r (NULL, ",", &rest))
        if (strcmp (name, "cpu") == 0)
            return true;
    return false;
}

int
nvs_cpu_quota (const char *groups, const char *root)
{
    char text[TEXT_MAX];
    char folder[PATH_SIZE];
    char *rest = NULL;
    int least = INT_MAX;

    if (!read_text (groups, text, sizeof text))
        return INT_MAX;
    /* Number:controllers:path; version 2's has no controllers */
    for (char *line = strtok_r (text, "\n", &rest); line != NULL; line = strtok_r (NULL, "\n", &rest)) {
        char *controllers = strchr (line, ':');
        char *group = controllers != NULL ? strchr (controllers + 1, ':') : NULL;
        bool unified;
        int quota;

        if (group == NULL)
            continue;
        *group++ = '\0';
        controllers++;
        unified = *controllers == '\0';
        (void)snprintf (folder, sizeof folder, "%s%s%s", root, unified ? "" : "/", controllers);
        if (!unified && !has_cpu (controllers))
            continue;
        quota = quota_up (folder, group, unified);
        if (quota < least)
            least = quota;
    }
    return least;
}

int
nvs_looking_max (void)
{
    int quota = nvs_cpu_quota ("/proc/self/cgroup", "/sys/fs/cgroup");
    int cpus = CPU_SETSIZE;
    cpu_set_t set;

    CPU_ZERO (&set);
    /* EINVAL means more CPUs than the set has room for. */
    if (sched_getaffinity (0, sizeof set, &set) == 0)
        cpus = CPU_COUNT (&set);
    else if (errno != EINVAL)
        return 0;
    return (cpus < quota ? cpus : quota) / 2;
}
