/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `stages` is the order of the worker's (csrc/worker/main.c), for the same reasons, and most of them are its code. What
 * is different follows from this: the process goes on as a program that nobody has changed for it. At MOUNT it keeps
 * what it had, unless --lockdown was given; at every step it may start others and write where it could before.
 *
 * There is no way back from a namespace. So a step that may fail is tried by a child first, and this process takes
 * none but the one that worked.
 */
#include "ladder.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"
#include "devices.h"
#include "devtree.h"
#include "error.h"
#include "idmap.h"
#include "landlock.h"
#include "lockdown.h"
#include "namespace.h"
#include "say.h"
#include "shared.h"

struct climb {
    const struct nvs_plan *plan;
    struct nvs_options options; /* the plan's, with this step */
    struct nvs_policy policy;
    struct nvs_devtree tree;
    struct nvs_report report;
    struct nvs_id_mapper mapper;
    uint64_t mount_ns_before;
    uid_t uid;
    gid_t gid;
    int *folder;
    char cwd[PATH_MAX]; /* "" where it is not in /dev */
};

static bool
locked_down (const struct climb *climb)
{
    return (climb->plan->run.flags & NVS_RUN_LOCKDOWN) != 0;
}

/* ---- stages ------------------------------------------------------------------------------------------- */

static int
user_namespace (struct climb *climb, struct nvs_error *error)
{
    nvs_id_mapper_start (&climb->mapper);
    if (nvs_namespace_user (error) == 0)
        return 0;
    (void)nvs_id_mapper_finish (&climb->mapper, false);
    return -1;
}

/* Files keep their owners for a program that looks at them, such as a generator of CDI specs that has to name the group
 * of /dev/dri/card0. */
static int
id_map (struct climb *climb, struct nvs_error *error)
{
    if (nvs_id_mapper_finish (&climb->mapper, true))
        return 0;
    return nvs_namespace_id_map (climb->uid, climb->gid, error);
}

static int
mount_namespace (struct climb *climb, struct nvs_error *error)
{
    (void)climb;
    return nvs_namespace_mount (error);
}

static int
propagation (struct climb *climb, struct nvs_error *error)
{
    if ((climb->plan->run.flags & NVS_RUN_KEEP_PROPAGATION) != 0)
        return nvs_namespace_propagation_of_dev (error);
    return nvs_namespace_propagation (error);
}

static int
dev_root (struct climb *climb, struct nvs_error *error)
{
    return nvs_devtree_survey (&climb->tree, &climb->policy, error);
}

static int
dev_tmpfs (struct climb *climb, struct nvs_error *error)
{
    return nvs_devtree_cover (&climb->tree, error);
}

static int
dev_base (struct climb *climb, struct nvs_error *error)
{
    return nvs_shared_base (&climb->tree, error);
}

static int
dev_nvidia (struct climb *climb, struct nvs_error *error)
{
    return nvs_devtree_nvidia (&climb->tree, error);
}

/* Not with --lockdown, which shows no more than the driver needs, and not with simulated GPUs, beside which there are to
 * be no real ones. With --devices no node is to lead to the GPUs that are not listed. */
static int
other_devices (struct climb *climb, struct nvs_error *error)
{
    const uint32_t flags = climb->options.flags;

    (void)error;
    if (!locked_down (climb) && (flags & NVS_START_SIMULATED) == 0)
        nvs_show_other_devices (&climb->tree, (flags & NVS_START_DEVICES) == 0);
    return 0;
}

/* Where NVML cannot or must not make nodes it is told so, and does not try. The private /dev stays writable: it is the
 * program's alone. */
static int
params (struct climb *climb, struct nvs_error *error)
{
    bool keeps_mknod = climb->options.isolation == NVS_ISOLATION_MOUNT && !locked_down (climb);

    if (!keeps_mknod && !climb->policy.mknod && nvs_devtree_no_files (&climb->tree, error) != 0)
        return -1;
    *climb->folder = open ("/dev", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    nvs_devtree_release (&climb->tree);
    return 0;
}

/* A working folder in /dev is the host's still: relative paths would lead out. The same one in the private /dev, or
 * none at all. */
static int
working_folder (struct climb *climb, struct nvs_error *error)
{
    if (climb->cwd[0] != '\0' && chdir (climb->cwd) != 0) {
        int err = errno;

        /* No reason to try the next step, which would leave the program in the host's /dev. */
        return nvs_fail (error, NVS_STEP_WORKING_DIR, err, climb->cwd,
                         "the working folder is in the host's /dev and not in the private one; start the program in "
                         "another folder");
    }
    return 0;
}

static int
capabilities (struct climb *climb, struct nvs_error *error)
{
    return nvs_lockdown_caps (&climb->policy, error);
}

static int
no_new_privs (struct climb *climb, struct nvs_error *error)
{
    (void)climb;
    return nvs_lockdown_no_new_privs (error);
}

static int
domain (struct climb *climb, struct nvs_error *error)
{
    return nvs_landlock_program (climb->options.isolation, error);
}

/* Without no_new_privs this takes CAP_SYS_ADMIN, which MOUNT has. With a choice of devices it is needed there too: a
 * program that may make nodes would make those of the others. */
static int
mknod_filter (struct climb *climb, struct nvs_error *error)
{
    return nvs_lockdown_mknod (&climb->policy, error);
}

static int
program_filter (struct climb *climb, struct nvs_error *error)
{
    (void)climb;
    return nvs_lockdown_program (error);
}

static int
check (struct climb *climb, struct nvs_error *error)
{
    return nvs_check_dev (&climb->policy, climb->mount_ns_before, &climb->report, error);
}

/* The check of privileges asks for a filter, and there is one at GUARD and under --lockdown alone. */
static int
check_lockdown (struct climb *climb, struct nvs_error *error)
{
    if (nvs_check_privileges (&climb->policy, &climb->report, error) != 0)
        return -1;
    return nvs_check_mknod (&climb->policy, error);
}

/* For which of the steps a stage is, and whether with --lockdown (L) and --devices (D) for more. */
#define M   (1u << NVS_ISOLATION_MOUNT)
#define U   (1u << NVS_ISOLATION_USER)
#define G   (1u << NVS_ISOLATION_GUARD)
#define ALL (M | U | G)

static const struct stage {
    enum nvs_step step;
    unsigned int always;
    unsigned int with_lockdown;
    unsigned int with_devices;
    int (*run) (struct climb *, struct nvs_error *);
} stages[] = {
    { NVS_STEP_USER_NS, U, U, U, user_namespace },
    { NVS_STEP_ID_MAP, U, U, U, id_map },
    { NVS_STEP_MOUNT_NS, M | U, M | U, M | U, mount_namespace },
    { NVS_STEP_PROPAGATION, M | U, M | U, M | U, propagation },
    { NVS_STEP_DEV_ROOT, M | U, M | U, M | U, dev_root },
    { NVS_STEP_DEV_TMPFS, M | U, M | U, M | U, dev_tmpfs },
    { NVS_STEP_DEV_BASE, M | U, M | U, M | U, dev_base },
    { NVS_STEP_DEV_NVIDIA, M | U, M | U, M | U, dev_nvidia },
    { NVS_STEP_DEV_NVIDIA, M | U, M | U, M | U, other_devices },
    { NVS_STEP_PARAMS, M | U, M | U, M | U, params },
    { NVS_STEP_WORKING_DIR, M | U, M | U, M | U, working_folder },
    { NVS_STEP_CHECK, ALL, ALL, ALL, check },
    /* At USER the capabilities of the new namespace: the caller had none of them, and with them the program could take
     * the tmpfs off again. */
    { NVS_STEP_CAPS, U | G, ALL, U | G, capabilities },
    { NVS_STEP_NO_NEW_PRIVS, U | G, ALL, U | G, no_new_privs },
    { NVS_STEP_LANDLOCK, G, ALL, G, domain },
    { NVS_STEP_SECCOMP, G, ALL, M | G, mknod_filter },
    { NVS_STEP_SECCOMP, 0, ALL, 0, program_filter },
    { NVS_STEP_CHECK, G, ALL, G, check_lockdown },
};

static bool
is_for (const struct stage *stage, const struct climb *climb)
{
    unsigned int steps = stage->always;

    if (locked_down (climb))
        steps |= stage->with_lockdown;
    if ((climb->options.flags & NVS_START_DEVICES) != 0)
        steps |= stage->with_devices;
    return (steps & 1u << climb->options.isolation) != 0;
}

/* ---- climbing ----------------------------------------------------------------------------------------- */

static void
note_folder (struct climb *climb)
{
    if (climb->options.isolation == NVS_ISOLATION_GUARD || getcwd (climb->cwd, sizeof climb->cwd) == NULL
        || strncmp (climb->cwd, "/dev", 4) != 0 || (climb->cwd[4] != '\0' && climb->cwd[4] != '/'))
        climb->cwd[0] = '\0';
}

int
nvs_ladder_climb (const struct nvs_plan *plan, enum nvs_isolation step, int *folder, struct nvs_error *error)
{
    static struct climb climb;
    mode_t mask;

    climb = (struct climb){
        .plan = plan, .options = plan->options, .folder = folder, .uid = geteuid (), .gid = getegid ()
    };
    climb.options.isolation = step;
    climb.mount_ns_before = nvs_namespace_mount_id ();
    *folder = -1;
    if (step == NVS_ISOLATION_GUARD
        && (plan->options.flags & (NVS_START_DEVICES | NVS_START_SIMULATED)) == NVS_START_DEVICES)
        return nvs_fail (error, NVS_STEP_DEV_NVIDIA, 0, "/dev",
                         "--devices hides nodes, for which the sandbox needs a /dev of its own; at the step guard the "
                         "program sees the host's: leave --devices out, or make the step mount or user possible");
    nvs_policy_read (&climb.policy, &climb.options);
    climb.policy.program = true;
    note_folder (&climb);
    mask = umask (0); /* modes of nodes are as given */
    for (size_t i = 0; i < sizeof stages / sizeof *stages; i++) {
        if (is_for (&stages[i], &climb) && stages[i].run (&climb, error) != 0)
            return -1;
    }
    (void)umask (mask);
    return 0;
}

/* Whether a failure means that this step is not possible here; others would fail at every step. */
static bool
is_about_the_step (const struct nvs_error *error)
{
    return error->step >= NVS_STEP_USER_NS && error->step <= NVS_STEP_CHECK && error->step != NVS_STEP_DEV_ROOT;
}

struct trial {
    bool worked;
    struct nvs_error error;
};

/* What climbing would do, found out by a child. Its end sends no signal, which would be pending in the program if that
 * blocks SIGCHLD; the C library's fork would send one. */
static void
try_step (const struct nvs_plan *plan, enum nvs_isolation step, struct trial *trial)
{
    int folder;
    long pid;

    *trial = (struct trial){ .worked = false };
    (void)nvs_fail (&trial->error, NVS_STEP_CHECK, 0, NULL, "the process that tried it ended early");
    pid = syscall (SYS_clone, 0ul, NULL, NULL, NULL, NULL);
    if (pid == 0) {
        trial->worked = nvs_ladder_climb (plan, step, &folder, &trial->error) == 0;
        _exit (0);
    }
    if (pid < 0) {
        int err = errno;

        (void)nvs_fail (&trial->error, NVS_STEP_SPAWN, err, NULL, "cannot make a process that tries the sandbox");
        return;
    }
    while (waitpid ((pid_t)pid, NULL, __WALL) < 0 && errno == EINTR)
        continue;
}

const char *
nvs_ladder_name (enum nvs_isolation step)
{
    switch (step) {
    case NVS_ISOLATION_MOUNT: return "mount";
    case NVS_ISOLATION_USER: return "user";
    case NVS_ISOLATION_GUARD: return "guard";
    }
    return "unknown";
}

enum nvs_isolation
nvs_ladder_choose (const struct nvs_plan *plan, char *why, size_t size, struct nvs_error *error)
{
    static const enum nvs_isolation ladder[] = { NVS_ISOLATION_MOUNT, NVS_ISOLATION_USER, NVS_ISOLATION_GUARD };
    struct trial *trial = mmap (NULL, sizeof *trial, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    unsigned int left = plan->run.steps;
    size_t length = 0;

    why[0] = '\0';
    if (trial == MAP_FAILED) {
        int err = errno;

        (void)nvs_fail (error, NVS_STEP_SPAWN, err, NULL, "no memory");
        return 0;
    }
    for (size_t i = 0; i < sizeof ladder / sizeof *ladder; i++) {
        unsigned int bit = 1u << ladder[i];
        static char text[NVS_SAY_MAX];

        if ((left & bit) == 0)
            continue;
        left &= ~bit;
        if (left == 0)
            return ladder[i];
        try_step (plan, ladder[i], trial);
        if (trial->worked)
            return ladder[i];
        if (!is_about_the_step (&trial->error)) {
            *error = trial->error;
            if (length > 0 && length < size)
                (void)snprintf (why + length, size - length, "%s: ", nvs_ladder_name (ladder[i]));
            return 0;
        }
        nvs_say_text (&trial->error, text, sizeof text);
        if (length < size)
            length += (size_t)snprintf (why + length, size - length, "%s: %s; ", nvs_ladder_name (ladder[i]), text);
    }
    return 0;
}
