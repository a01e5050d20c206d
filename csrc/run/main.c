/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nvsandbox-run PLAN FILE ARGV0 ARGUMENT...: what `nvsandbox run` executes in its own place. It reads the plan from that
 * descriptor (protocol.h), isolates itself, and executes FILE. No process is in between: who started nvsandbox has the
 * program itself, with its signals, its terminal and its exit status.
 *
 * nvsandbox-run [OPTION...] -- COMMAND [ARGUMENT...]: the same by itself (cmdline.h). PLAN is a number, and an option is
 * not.
 *
 * What it changes of itself for its own work it puts back before that: umask, limit of descriptors, parent-death signal.
 * All descriptors of its own are closed by execve.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "cmdline.h"
#include "error.h"
#include "idmap.h"
#include "ladder.h"
#include "parent.h"
#include "plan.h"
#include "say.h"

#define ARGUMENTS_MIN 4

/* `before`: why the steps of the ladder before this one are not possible, and which one this is; "" at the first. */
static __attribute__ ((noreturn)) void
fail_as (const struct nvs_plan *plan, const char *type, const char *before, const struct nvs_error *error)
{
    static char text[NVS_SAY_MAX];
    static char all[NVS_SAY_ALL_MAX];

    nvs_say_text (error, text, sizeof text);
    nvs_mark_cut (all, sizeof all, snprintf (all, sizeof all, "%s%s", before, text));
    nvs_say (all, type, NVS_EXIT_FAILED, (plan->run.flags & NVS_RUN_JSON) != 0);
    _exit (NVS_EXIT_FAILED);
}

static __attribute__ ((noreturn)) void
fail (const struct nvs_plan *plan, const struct nvs_error *error)
{
    fail_as (plan, "SandboxStartError", "", error);
}

static int
number (const char *text)
{
    char *end;
    long value = strtol (text, &end, 10);

    return *end == '\0' && end != text && value >= 0 && value < 1 << 30 ? (int)value : -1;
}

/* As execvp: a file that is executable, and that the kernel does not know, is a script without #! for the shell. */
static int
execute (const char *file, char **argv, char **environment)
{
    size_t count = 0;
    char **with_shell;

    (void)execve (file, argv, environment);
    if (errno != ENOEXEC)
        return errno;
    while (argv[count] != NULL)
        count++;
    with_shell = calloc (count + 2, sizeof *with_shell);
    if (with_shell == NULL)
        return ENOMEM;
    with_shell[0] = (char *)"sh";
    with_shell[1] = (char *)file;
    if (count > 1)
        memcpy (with_shell + 2, argv + 1, (count - 1) * sizeof *argv);
    (void)execve ("/bin/sh", with_shell, environment);
    return errno;
}

static const char *
exec_reason (int err)
{
    switch (err) {
    case ENOENT: return "it, or the interpreter that it names, does not exist (in the private /dev, if it is there)";
    case EACCES: return "it is not executable";
    case E2BIG: return "the arguments and the environment together are too long";
    default: return strerror (err);
    }
}

static int
become (const struct nvs_plan *plan, const char *file, char **argv, char **environment)
{
    int err = execute (file, argv, environment);
    int status = err == ENOENT || err == ENOTDIR ? NVS_EXIT_NOT_FOUND : NVS_EXIT_CANNOT_RUN;
    char text[NVS_PATH_MAX + 256];

    nvs_mark_cut (text, sizeof text, snprintf (text, sizeof text, "cannot run %s: %s", file, exec_reason (err)));
    nvs_say (text, "CommandError", status, (plan->run.flags & NVS_RUN_JSON) != 0);
    if (plan->run.report >= 0)
        (void)send (plan->run.report, "x", 1, MSG_NOSIGNAL); /* nothing to report; the exit status alone is ambiguous */
    return status;
}

/* A new user namespace can clear it, as any change of credentials that the kernel takes for a gain. */
static int
death_signal (void)
{
    int value = 0;

    return prctl (PR_GET_PDEATHSIG, &value, 0, 0, 0) == 0 ? value : 0;
}

/* What to run, and how. */
struct task {
    struct nvs_plan plan;
    const char *file;
    char **argv;
    char **environment;
};

/* As `nvsandbox run` hands it over. */
static void
from_plan (struct task *task, char **argv)
{
    struct nvs_plan *plan = &task->plan;
    struct nvs_error error = { .step = NVS_STEP_NONE };

    if (nvs_plan_read (plan, number (argv[1]), &error) != 0)
        fail (plan, &error);
    if (plan->run.report >= 0 && fcntl (plan->run.report, F_SETFD, FD_CLOEXEC) != 0)
        fail (plan, (nvs_fail (&error, NVS_STEP_HELLO, errno, NULL, "there is no parent to report to"), &error));
    if ((task->environment = nvs_plan_environment (plan)) == NULL)
        fail (plan, (nvs_fail (&error, NVS_STEP_HELLO, ENOMEM, NULL, "no memory for the environment"), &error));
    task->file = argv[2];
    task->argv = argv + 3;
}

/* As somebody wrote it. */
static void
from_command_line (struct task *task, char **argv)
{
    static char file[PATH_MAX];
    struct nvs_error error = { .step = NVS_STEP_NONE };
    int status;

    task->argv = nvs_cmdline_read (argv, &task->plan, &error);
    if (task->argv == NULL) {
        nvs_say (error.detail, "UsageError", NVS_EXIT_FAILED, false);
        exit (NVS_EXIT_FAILED);
    }
    status = nvs_cmdline_find (task->argv[0], file, sizeof file);
    if (status != 0) {
        (void)fprintf (stderr, "nvsandbox: %s %s\n", file,
                       status == NVS_EXIT_NOT_FOUND ? "does not exist, as a path or in PATH" : "is not executable");
        exit (status);
    }
    task->file = file;
    task->environment = environ;
}

int
main (int argc, char **argv)
{
    static struct task task = { .plan = { .run = { .report = -1 } } };
    const struct nvs_plan *plan = &task.plan;
    struct nvs_error error = { .step = NVS_STEP_NONE };
    static char why[NVS_SAY_ALL_MAX];
    enum nvs_isolation step;
    struct rlimit descriptors;
    struct rlimit raised;
    bool limited;
    const int death = death_signal ();
    int folder = -1;

    if (argc == 2 && strcmp (argv[1], "--version") == 0) {
        (void)printf ("nvsandbox-run %s (protocol %u)\n", NVSANDBOX_VERSION, NVS_PROTOCOL_VERSION);
        return 0;
    }
    if (argc > 1 && argv[1][0] == '-') {
        from_command_line (&task, argv);
    } else if (argc > 1 && number (argv[1]) < 0) {
        (void)fprintf (stderr,
                       "nvsandbox: '%s': expected -- before the command: nvsandbox-run [OPTION...] -- %s%s (see "
                       "nvsandbox-run --help)\n",
                       argv[1], argv[1], argc > 2 ? " …" : "");
        return NVS_EXIT_FAILED;
    } else if (argc >= ARGUMENTS_MIN) {
        from_plan (&task, argv);
    } else {
        (void)fprintf (stderr, "nvsandbox: nvsandbox-run is started by `nvsandbox run`; by hand it is nvsandbox-run "
                               "[OPTION...] -- COMMAND (see nvsandbox-run --help)\n");
        return NVS_EXIT_FAILED;
    }

    /* The program may have a limit that leaves us nothing to work with. */
    limited = getrlimit (RLIMIT_NOFILE, &descriptors) == 0;
    if (limited) {
        raised = (struct rlimit){ .rlim_cur = descriptors.rlim_max, .rlim_max = descriptors.rlim_max };
        (void)setrlimit (RLIMIT_NOFILE, &raised);
    }
    step = nvs_ladder_choose (plan, why, sizeof why, &error);
    if (step == 0)
        fail_as (plan, "SandboxStartError", why, &error);
    if (nvs_ladder_climb (plan, step, &folder, &error) != 0) {
        if (why[0] == '\0')
            fail (plan, &error);
        (void)snprintf (why + strlen (why), sizeof why - strlen (why), "%s: ", nvs_ladder_name (step));
        fail_as (plan, "SandboxUnavailable", why, &error);
    }
    if ((plan->run.flags & NVS_RUN_DEBUG) != 0)
        (void)fprintf (stderr, "nvsandbox: isolation %s%s%s%s\n", nvs_ladder_name (step),
                       step == NVS_ISOLATION_USER && !nvs_ids_are_mapped ()
                           ? ", and ids of others are shown as 65534 (mapping them takes CAP_SETUID, CAP_SETGID and "
                             "CAP_SETFCAP)"
                           : "",
                       why[0] != '\0' ? "; not " : "", why);
    if (plan->run.report >= 0 && nvs_parent_tell (plan->run.report, step, folder, &error) != 0)
        fail (plan, &error);

    if (limited)
        (void)setrlimit (RLIMIT_NOFILE, &descriptors);
    if (death != 0)
        (void)prctl (PR_SET_PDEATHSIG, death, 0, 0, 0);
    return become (plan, task.file, task.argv, task.environment);
}
