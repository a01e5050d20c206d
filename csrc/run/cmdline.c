/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The options are those of `nvsandbox run` that need nothing but the kernel, by the same names, with the same
 * environment variables, and a wrong one is refused as there. What Python knows and this does not: where a driver's
 * library is (the program finds its own), which GPU has a UUID, the simulator, the report.
 *
 * The options come from whoever starts the program, which has no privileges that they have not.
 */
#include "cmdline.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "error.h"
#include "ladder.h"
#include "say.h"

#define SHOWN_MAX 300
#define MINORS    250u /* 254 and 255 are nvidia-modeset and nvidiactl */

#define VARIABLE(name)     "environment variable " name
#define NVIDIA_DRIVER_ROOT VARIABLE ("NVIDIA_DRIVER_ROOT")

static const char help[] =
    "Usage: nvsandbox-run [OPTION...] -- COMMAND [ARGUMENT...]\n"
    "\n"
    "Becomes COMMAND, with a /dev of its own, as `nvsandbox run` does, and needs no Python.\n"
    "\n"
    "  --isolation STEP   auto (the first that works here), mount, user or guard\n"
    "                     [default: NVSANDBOX_ISOLATION, else auto]\n"
    "  --user, --guard    short for --isolation user and --isolation guard\n"
    "  --keep-propagation mounts that COMMAND makes outside /dev reach the host (with CAP_SYS_ADMIN: step mount alone)\n"
    "  --lockdown         also drop capabilities; refuse mounts, namespaces, tracing, modules\n"
    "  --driver-root DIR  root of the tree with the driver\n"
    "                     [default: NVSANDBOX_DRIVER_ROOT, else NVIDIA_DRIVER_ROOT, else /]\n"
    "  --dev-root DIR     root whose dev/ has the nodes\n"
    "                     [default: NVSANDBOX_DEV_ROOT, else the driver root or /]\n"
    "  --devices LIST     only these GPUs' nodes, by minor numbers: 0,2  [default: NVSANDBOX_DEVICES, else all]\n"
    "  --version; -h, --help\n"
    "\n"
    "Exit status: COMMAND's own; 125 nvsandbox failed, 126 COMMAND cannot be executed, 127 it does not exist.\n";

/* What an option or variable says. `name` is for errors: "--isolation", "environment variable NVSANDBOX_ISOLATION". */
struct given {
    const char *name;
    const char *value; /* NULL: not given */
};

/* What stands behind a value in an error, which is shown up to SHOWN_MAX bytes. */
static const char *
cut (const struct given *given)
{
    return strlen (given->value) > SHOWN_MAX ? "\xe2\x80\xa6" : "";
}

static int
wrong (struct nvs_error *error, const struct given *given, const char *expected)
{
    return nvs_fail (error, NVS_STEP_NONE, 0, NULL, "%s: '%.*s%s': expected %s", given->name, SHOWN_MAX, given->value,
                     cut (given), expected);
}

static int
set_isolation (struct nvs_plan *plan, const struct given *given, struct nvs_error *error)
{
    static const enum nvs_isolation steps[] = { NVS_ISOLATION_MOUNT, NVS_ISOLATION_USER, NVS_ISOLATION_GUARD };

    plan->run.steps = 0;
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
        if (given->value == NULL || strcmp (given->value, "auto") == 0
            || strcmp (given->value, nvs_ladder_name (steps[i])) == 0)
            plan->run.steps |= 1u << steps[i];
    }
    return plan->run.steps != 0 ? 0 : wrong (error, given, "auto, mount, user or guard");
}

static int
set_devices (struct nvs_plan *plan, const struct given *given, struct nvs_error *error)
{
    static const char expected[] = "minor numbers from 0 to 249 (0 for /dev/nvidia0) with commas between them; UUIDs "
                                   "and PCI bus ids are for nvsandbox run";
    const char *at = given->value;

    if (at == NULL)
        return 0;
    plan->options.flags |= NVS_START_DEVICES;
    for (;;) {
        char *end;
        unsigned long minor_number;

        /* strtoul takes blanks and signs */
        minor_number = *at >= '0' && *at <= '9' ? strtoul (at, &end, 10) : ULONG_MAX;
        if (minor_number >= MINORS || (*end != ',' && *end != '\0') || plan->options.devices_count == NVS_DEVICES_MAX)
            return wrong (error, given, expected);
        plan->options.device_minors[plan->options.devices_count++] = (uint32_t)minor_number;
        if (*end == '\0')
            return 0;
        at = end + 1;
    }
}

/* What is wrong with it as a root, NULL if nothing is. */
static const char *
not_a_root (const char *path)
{
    struct stat st;

    if (path[0] != '/')
        return ": expected the absolute path of a folder,";
    if (stat (path, &st) != 0)
        return errno == ENOENT || errno == ENOTDIR ? " does not exist: expected" : " cannot be looked at: expected";
    return S_ISDIR (st.st_mode) ? NULL : " is not a folder: expected";
}

static int
wrong_root (struct nvs_error *error, const struct given *given, const char *problem, const char *expected)
{
    /* DRA drivers and operators set it for all their containers, and mean the host's. */
    const bool of_the_host = strcmp (given->name, NVIDIA_DRIVER_ROOT) == 0;

    return nvs_fail (error, NVS_STEP_NONE, 0, NULL, "%s: '%.*s%s'%s %s%s", given->name, SHOWN_MAX, given->value,
                     cut (given), problem, expected,
                     of_the_host ? "; in a container this variable is often a path on the host: say with "
                                   "NVSANDBOX_DRIVER_ROOT where that root is mounted here"
                                 : "");
}

static bool
is_folder (const char *path)
{
    struct stat st;

    return stat (path, &st) == 0 && S_ISDIR (st.st_mode);
}

static bool
has_nodes (const char *folder)
{
    DIR *entries = opendir (folder);
    bool found = false;

    if (entries == NULL)
        return false;
    for (const struct dirent *entry; !found && (entry = readdir (entries)) != NULL;)
        found = strncmp (entry->d_name, "nvidia", 6) == 0;
    (void)closedir (entries);
    return found;
}

/* As roots.dev_folder does it: a root with a dev in it, or such a folder itself; without one the driver root's dev if
 * it has nodes, as a driver container's has, else the host's. */
static int
set_roots (struct nvs_plan *plan, const struct given *driver, const struct given *dev, struct nvs_error *error)
{
    static char inside[PATH_MAX];
    const char *root = driver->value != NULL ? driver->value : "/";
    const char *problem;

    if (driver->value != NULL && (problem = not_a_root (root)) != NULL)
        return wrong_root (error, driver, problem, "the root of the tree that holds NVIDIA's driver");
    if (dev->value != NULL && (problem = not_a_root (dev->value)) != NULL)
        return wrong_root (error, dev, problem, "the root whose dev/ holds the NVIDIA nodes");
    plan->options.driver_root = root;
    if (dev->value != NULL)
        root = dev->value;
    (void)snprintf (inside, sizeof inside, "%s/dev", strcmp (root, "/") == 0 ? "" : root);
    if (dev->value != NULL)
        plan->options.dev_root = is_folder (inside) ? inside : dev->value;
    else
        plan->options.dev_root = has_nodes (inside) ? inside : "/dev";
    return 0;
}

static int
keep_propagation (struct nvs_plan *plan, struct nvs_error *error)
{
    if ((plan->run.flags & NVS_RUN_KEEP_PROPAGATION) == 0)
        return 0;
    if ((plan->run.flags & NVS_RUN_LOCKDOWN) != 0)
        return nvs_fail (error, NVS_STEP_NONE, 0, NULL,
                         "--keep-propagation and --lockdown are mutually exclusive: expected one, for --lockdown "
                         "refuses all mounts");
    plan->run.steps &= 1u << NVS_ISOLATION_MOUNT;
    if (plan->run.steps == 0)
        return nvs_fail (
            error, NVS_STEP_NONE, 0, NULL,
            "--keep-propagation is for the step mount, the only one at which a program may mount: expected "
            "--isolation auto or mount");
    return 0;
}

/* A variable that is empty counts as one that is not set, as everywhere in nvsandbox. */
static void
from_environment (struct given *given, const char *name, const char *shown)
{
    const char *value = getenv (name);

    if (given->value == NULL && value != NULL && *value != '\0')
        *given = (struct given){ .name = shown, .value = value };
}

#define FROM_ENVIRONMENT(given, name) from_environment (given, name, VARIABLE (name))

/* What `nvsandbox run` heeds and this cannot. The program gets it all the same, for it may use nvsandbox itself. */
static void
tell_of_no_effect (const char *variable)
{
    const char *value = getenv (variable);

    if (value != NULL && *value != '\0')
        (void)fprintf (
            stderr,
            "nvsandbox: environment variable %s has no effect on nvsandbox-run, only on `nvsandbox run`: the "
            "program finds the driver's library by itself\n",
            variable);
}

enum option {
    ISOLATION,
    DRIVER_ROOT,
    DEV_ROOT,
    DEVICES,
    OPTIONS
};

/* Takes the option at *at, and moves that on to the next argument. */
static int
take_option (char ***at, struct given given[OPTIONS], struct nvs_error *error)
{
    const char *argument = *(*at)++;

    for (size_t i = 0; i < OPTIONS; i++) {
        size_t length = strlen (given[i].name);

        if (strncmp (argument, given[i].name, length) != 0 || (argument[length] != '\0' && argument[length] != '='))
            continue;
        given[i].value = argument[length] == '=' ? argument + length + 1 : *(*at)++;
        if (given[i].value == NULL)
            return nvs_fail (error, NVS_STEP_NONE, 0, NULL, "%s needs a value (see nvsandbox-run --help)", argument);
        return 0;
    }
    return nvs_fail (error, NVS_STEP_NONE, 0, NULL, "there is no option %s (see nvsandbox-run --help)", argument);
}

char **
nvs_cmdline_read (char **argv, struct nvs_plan *plan, struct nvs_error *error)
{
    struct given given[OPTIONS] = {
        [ISOLATION] = { .name = "--isolation" },
        [DRIVER_ROOT] = { .name = "--driver-root" },
        [DEV_ROOT] = { .name = "--dev-root" },
        [DEVICES] = { .name = "--devices" },
    };
    struct given debug = { .value = NULL };
    const char *simulator;
    char **at = argv + 1;

    while (*at != NULL && (*at)[0] == '-' && strcmp (*at, "--") != 0) {
        if (strcmp (*at, "--help") == 0 || strcmp (*at, "-h") == 0) {
            (void)fputs (help, stdout);
            exit (fflush (stdout) == 0 ? 0 : NVS_EXIT_FAILED);
        }
        if (strcmp (*at, "--lockdown") == 0) {
            plan->run.flags |= NVS_RUN_LOCKDOWN;
            at++;
        } else if (strcmp (*at, "--keep-propagation") == 0) {
            plan->run.flags |= NVS_RUN_KEEP_PROPAGATION;
            at++;
        } else if (strcmp (*at, "--user") == 0 || strcmp (*at, "--guard") == 0) {
            given[ISOLATION].value = *at++ + strlen ("--");
        } else if (take_option (&at, given, error) != 0) {
            return NULL;
        }
    }
    if (*at != NULL && strcmp (*at, "--") == 0)
        at++;
    if (*at == NULL) {
        (void)nvs_fail (error, NVS_STEP_NONE, 0, NULL, "there is no command to run (see nvsandbox-run --help)");
        return NULL;
    }

    FROM_ENVIRONMENT (&given[ISOLATION], "NVSANDBOX_ISOLATION");
    FROM_ENVIRONMENT (&given[DRIVER_ROOT], "NVSANDBOX_DRIVER_ROOT");
    FROM_ENVIRONMENT (&given[DRIVER_ROOT], "NVIDIA_DRIVER_ROOT");
    FROM_ENVIRONMENT (&given[DEV_ROOT], "NVSANDBOX_DEV_ROOT");
    FROM_ENVIRONMENT (&given[DEVICES], "NVSANDBOX_DEVICES");
    FROM_ENVIRONMENT (&debug, "NVSANDBOX_DEBUG");
    if (debug.value != NULL && strcmp (debug.value, "0") != 0)
        plan->run.flags |= NVS_RUN_DEBUG;
    plan->options.simulator = "";
    if (set_isolation (plan, &given[ISOLATION], error) != 0 || set_devices (plan, &given[DEVICES], error) != 0
        || set_roots (plan, &given[DRIVER_ROOT], &given[DEV_ROOT], error) != 0 || keep_propagation (plan, error) != 0)
        return NULL;
    simulator = getenv ("NVSANDBOX_SIM");
    if (simulator == NULL || *simulator == '\0') /* else it is found, as in `nvsandbox run --simulate` */
        tell_of_no_effect ("NVSANDBOX_SIMULATE");
    tell_of_no_effect ("NVSANDBOX_LIBRARY");
    return at;
}

static int
status_of (const char *file)
{
    struct stat st;

    if (stat (file, &st) != 0)
        return errno == ENOENT || errno == ENOTDIR ? NVS_EXIT_NOT_FOUND : NVS_EXIT_CANNOT_RUN;
    return S_ISDIR (st.st_mode) || faccessat (AT_FDCWD, file, X_OK, AT_EACCESS) != 0 ? NVS_EXIT_CANNOT_RUN : 0;
}

int
nvs_cmdline_find (const char *name, char *found, size_t size)
{
    const char *path = getenv ("PATH");
    int worst = NVS_EXIT_NOT_FOUND;

    (void)snprintf (found, size, "%s", name);
    if (strchr (name, '/') != NULL)
        return status_of (name);
    if (path == NULL)
        path = "/bin:/usr/bin";
    for (const char *end; *name != '\0'; path = end + 1) {
        int length;
        int status;

        end = strchrnul (path, ':');
        /* An empty element means the working folder, as ever. What is cut off would be another program's name. */
        length = snprintf (found, size, "%.*s%s%s", (int)(end - path), path, end == path ? "" : "/", name);
        status = length >= 0 && (size_t)length < size ? status_of (found) : NVS_EXIT_NOT_FOUND;
        if (status == 0)
            return 0;
        if (status == NVS_EXIT_CANNOT_RUN)
            worst = status;
        if (*end == '\0')
            break;
    }
    (void)snprintf (found, size, "%s", name);
    return worst;
}
