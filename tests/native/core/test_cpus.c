/* SPDX-License-Identifier: Apache-2.0 */
/* The quota of CPU time, from hierarchies of cgroups that this file makes in a folder of its own. */
#include <errno.h>
#include <limits.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../worker/tap.h"
#include "core.h"

static char root[] = "/tmp/nvsandbox-test-cpus-XXXXXX";

static const char *
in_root (const char *name)
{
    static char path[512];

    (void)snprintf (path, sizeof path, "%s/%s", root, name);
    return path;
}

/* Makes the folders on the way, too. */
static void
write_file (const char *name, const char *text)
{
    char path[512];
    FILE *file;

    (void)snprintf (path, sizeof path, "%s", in_root (name));
    for (char *slash = strchr (path + sizeof root, '/'); slash != NULL; slash = strchr (slash + 1, '/')) {
        *slash = '\0';
        (void)mkdir (path, 0700);
        *slash = '/';
    }
    file = fopen (path, "we");
    if (file == NULL || fputs (text, file) < 0 || fclose (file) != 0) {
        printf ("Bail out! %s: %s\n", path, strerror (errno));
        exit (1);
    }
}

static int
quota (const char *groups)
{
    char path[512];

    write_file ("groups", groups);
    (void)snprintf (path, sizeof path, "%s", in_root ("groups"));
    return nvs_cpu_quota (path, root);
}

int
main (void)
{
    char command[600];

    if (mkdtemp (root) == NULL) {
        printf ("Bail out! mkdtemp: %s\n", strerror (errno));
        return 1;
    }
    SAME (nvs_cpu_quota ("/nonexistent", root), INT_MAX);
    SAME (quota (""), INT_MAX);
    SAME (quota ("no line of a cgroup\n::\n"), INT_MAX);

    /* Version 2: the group's own, that of one above it, and none */
    write_file ("cpu.max", "max 100000\n");
    write_file ("pods/cpu.max", "400000 100000\n");
    write_file ("pods/one/cpu.max", "150000 100000\n");
    write_file ("pods/two/cpu.max", "max 100000\n");
    SAME (quota ("0::/pods/one\n"), 1);
    SAME (quota ("0::/pods/two\n"), 4);
    SAME (quota ("0::/pods/two/deeper/that/is/not/there\n"), 4);
    SAME (quota ("0::/\n"), INT_MAX);
    SAME (quota ("0::/../outside\n"), INT_MAX);
    /* In a container what /proc says may be the path on the host, and the top is the container's own. */
    write_file ("cpu.max", "50000 100000\n");
    SAME (quota ("0::/kubepods/pod1\n"), 0);
    SAME (quota ("0::/../outside\n"), 0);
    SAME (quota ("0::/\n"), 0);
    write_file ("cpu.max", "nonsense\n");
    SAME (quota ("0::/\n"), INT_MAX);
    write_file ("cpu.max", "100000 0\n");
    SAME (quota ("0::/\n"), INT_MAX);
    write_file ("cpu.max", "9223372036854775807 1\n");
    SAME (quota ("0::/\n"), INT_MAX);

    /* Version 1, beside others, and mixed with version 2 */
    write_file ("cpu,cpuacct/job/cpu.cfs_quota_us", "350000\n");
    write_file ("cpu,cpuacct/job/cpu.cfs_period_us", "100000\n");
    write_file ("cpu,cpuacct/cpu.cfs_quota_us", "-1\n");
    write_file ("cpu,cpuacct/cpu.cfs_period_us", "100000\n");
    write_file ("cpuset/job/cpu.cfs_quota_us", "1\n");
    write_file ("cpuset/job/cpu.cfs_period_us", "1\n");
    SAME (quota ("7:cpuset:/job\n4:cpu,cpuacct:/job\n"), 3);
    SAME (quota ("4:cpu,cpuacct:/\n"), INT_MAX);
    SAME (quota ("4:cpu,cpuacct:/job\n0::/pods/one\n"), 1);

    TRUE (nvs_looking_max () <= sysconf (_SC_NPROCESSORS_CONF) / 2);
    (void)snprintf (command, sizeof command, "rm -r %s", root);
    SAME (system (command), 0);
    return tap_done ();
}
