/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nvsandbox-worker: the process in which NVML runs. Its caller starts it with a control socket at descriptor 3
 * (protocol.h), and everything that it is to do comes from there.
 *
 * `stages` below is the table of contents, in the only order that works; the reason for each place stands with it. A
 * stage that fails is reported and ends the worker before the next one: a half-isolated process goes no further, and
 * there is no stepping down to a weaker isolation here. Until it is isolated there is one thread.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <time.h>
#include <unistd.h>

#include "channels.h"
#include "check.h"
#include "clock.h"
#include "control.h"
#include "devtree.h"
#include "error.h"
#include "landlock.h"
#include "library.h"
#include "lockdown.h"
#include "namespace.h"
#include "syscalls.h"

/* For calls that run when the end comes. Their callers wait 2 s, looking every 20 ms, and are not to see what the
 * library makes of calls that run into nvmlShutdown. */
#define DRAIN_LIMIT_MS   2100u
#define SHUTDOWN_LIMIT_S 5u    /* for nvmlShutdown */
#define ORPHAN_LIMIT_MS  10000 /* for an nvmlInit whose caller is gone */
#define DESCRIPTORS_MAX  65536 /* closed one by one where neither close_range nor /proc is there */
#define NOFILE_MAX       16384 /* the limit of descriptors: one for each thread that calls, and NVML's own */

enum {
    EXIT_END = 0,
    EXIT_FAILED = 1,
    EXIT_USAGE = 2
};

struct worker {
    struct nvs_control control;
    struct nvs_options options;
    struct nvs_policy policy;
    struct nvs_devtree tree;
    struct nvs_report report;
    struct nvs_library library;
    struct nvs_failed failed;
    int watch_done; /* what ends the watch over the library's start */
    uint64_t mount_ns_before;
    uid_t uid; /* as the caller has them; in a new user namespace they read as 65534 until the map is written */
    gid_t gid;
};

/* ---- descriptors, signals, limits --------------------------------------------------------------------- */

/* Closes what was inherited from descriptor 4 on. The caller may hold thousands, or have used up RLIMIT_NOFILE, and
 * none of them is this process's business. Never one by one up to the limit, which can be 2^30. */
static void
close_inherited (void)
{
    const int first = NVS_CONTROL_FD + 1;
    struct dirent *entry;
    DIR *listing;

    if (nvs_sys_close_range ((unsigned int)first, ~0u) == 0) /* Linux 5.9 */
        return;
    (void)close (first); /* the listing needs one */
    listing = opendir ("/proc/self/fd");
    if (listing == NULL) {
        for (int fd = first + 1; fd < DESCRIPTORS_MAX; fd++)
            (void)close (fd);
        return;
    }
    while ((entry = readdir (listing)) != NULL) {
        int fd = atoi (entry->d_name);

        if (fd >= first && fd != dirfd (listing))
            (void)close (fd);
    }
    (void)closedir (listing);
}

/* A descriptor that reads as empty, or swallows: /dev/null, or where that is missing or something else, a pipe without
 * its other end. */
static int
open_nothing (int direction)
{
    int fd = open ("/dev/null", direction | O_CLOEXEC | O_NOFOLLOW);
    struct stat st;
    int ends[2];

    if (fd >= 0 && fstat (fd, &st) == 0 && S_ISCHR (st.st_mode) && st.st_rdev == makedev (1, 3))
        return fd;
    if (fd >= 0)
        (void)close (fd);
    if (pipe2 (ends, O_CLOEXEC) != 0)
        return -1;
    (void)close (ends[direction == O_RDONLY]);
    return ends[direction != O_RDONLY];
}

static int
put_nothing (int target, int direction, struct nvs_error *error)
{
    int fd = open_nothing (direction);
    int err = errno;
    int rc;

    if (fd < 0)
        return nvs_fail (error, NVS_STEP_DESCRIPTORS, err, "/dev/null", "no descriptor for unwanted output");
    if (fd == target) { /* it was closed */
        rc = fcntl (fd, F_SETFD, 0);
        err = errno;
        return rc == 0
                   ? 0
                   : nvs_fail (error, NVS_STEP_DESCRIPTORS, err, NULL, "cannot keep descriptor %d over exec", target);
    }
    rc = dup2 (fd, target);
    err = errno;
    (void)close (fd);
    return rc == target ? 0 : nvs_fail (error, NVS_STEP_DESCRIPTORS, err, NULL, "cannot replace descriptor %d", target);
}

/* SIGTERM is read from a descriptor, so that the end is always the same orderly one. SIGINT is the caller's: Ctrl-C at
 * a terminal must not take NVML from a program that handles it. */
static int
settle_signals (struct worker *worker, struct nvs_error *error)
{
    sigset_t mask;
    int err;

    for (int number = 1; number < NSIG; number++)
        (void)signal (number, SIG_DFL); /* SIGKILL, SIGSTOP and the C library's own refuse, rightly */
    (void)signal (SIGPIPE, SIG_IGN);
    (void)signal (SIGINT, SIG_IGN);
    (void)sigemptyset (&mask);
    (void)sigaddset (&mask, SIGTERM);
    (void)sigprocmask (SIG_SETMASK, &mask, NULL);
    worker->control.signals = signalfd (-1, &mask, SFD_CLOEXEC | SFD_NONBLOCK);
    if (worker->control.signals < 0) {
        err = errno;
        return nvs_fail (error, NVS_STEP_DESCRIPTORS, err, NULL, "signalfd4: cannot read SIGTERM from a descriptor");
    }
    return 0;
}

/* No core dump of a process with the GPU driver's memory in it. A limit of 0 does not stop a core_pattern that is a
 * pipe; 1 does, by the kernel's own rule. */
static void
forbid_core_dumps (void)
{
    if (setrlimit (RLIMIT_CORE, &(struct rlimit){ 1, 1 }) != 0)
        (void)setrlimit (RLIMIT_CORE, &(struct rlimit){ 0, 0 });
}

/* Libraries size tables by this limit, or close all up to it: with 2^30, as container runtimes give it, that is
 * gigabytes, or minutes. For good, so that nothing raises it again. */
static void
lower_descriptor_limit (void)
{
    struct rlimit limit;

    if (getrlimit (RLIMIT_NOFILE, &limit) != 0 || limit.rlim_max <= NOFILE_MAX)
        return;
    limit.rlim_max = NOFILE_MAX;
    if (limit.rlim_cur > NOFILE_MAX)
        limit.rlim_cur = NOFILE_MAX;
    (void)setrlimit (RLIMIT_NOFILE, &limit);
}

static int
settle_process (struct worker *worker, struct nvs_error *error)
{
    close_inherited ();
    (void)fcntl (NVS_CONTROL_FD, F_SETFD, FD_CLOEXEC);
    (void)fcntl (NVS_CONTROL_FD, F_SETFL, fcntl (NVS_CONTROL_FD, F_GETFL) & ~O_NONBLOCK);
    if (put_nothing (STDIN_FILENO, O_RDONLY, error) != 0 || put_nothing (STDOUT_FILENO, O_WRONLY, error) != 0
        || (fcntl (STDERR_FILENO, F_GETFD) < 0 && put_nothing (STDERR_FILENO, O_WRONLY, error) != 0)
        || settle_signals (worker, error) != 0)
        return -1;
    (void)setsid ();        /* fails for a session leader, which is what the spawn makes of it */
    if (chdir ("/") != 0) { /* keeps no folder of the caller's busy */
        int err = errno;

        return nvs_fail (error, NVS_STEP_DESCRIPTORS, err, "/", "cannot go to the root folder");
    }
    (void)umask (0); /* modes of nodes are as given; 022 again once the private /dev stands */
    forbid_core_dumps ();
    lower_descriptor_limit ();
    worker->uid = geteuid ();
    worker->gid = getegid ();
    worker->mount_ns_before = nvs_namespace_mount_id ();
    return 0;
}

/* What a library prints never reaches the caller's stdout, and its stderr only on request. */
static int
settle_output (const struct worker *worker, struct nvs_error *error)
{
    if ((worker->options.flags & NVS_START_VERBOSE) == 0)
        return put_nothing (STDERR_FILENO, O_WRONLY, error);
    if (dup2 (STDERR_FILENO, STDOUT_FILENO) < 0) {
        int err = errno;

        return nvs_fail (error, NVS_STEP_DESCRIPTORS, err, NULL, "cannot join stdout with stderr");
    }
    return 0;
}

/* ---- stages ------------------------------------------------------------------------------------------- */

static int
user_namespace (struct worker *worker, struct nvs_error *error)
{
    (void)worker;
    return nvs_namespace_user (error);
}

static int
id_map (struct worker *worker, struct nvs_error *error)
{
    return nvs_namespace_id_map (worker->uid, worker->gid, error);
}

static int
mount_namespace (struct worker *worker, struct nvs_error *error)
{
    (void)worker;
    return nvs_namespace_mount (error);
}

static int
propagation (struct worker *worker, struct nvs_error *error)
{
    (void)worker;
    return nvs_namespace_propagation (error);
}

static int
dev_root (struct worker *worker, struct nvs_error *error)
{
    return nvs_devtree_survey (&worker->tree, &worker->policy, error);
}

static int
dev_tmpfs (struct worker *worker, struct nvs_error *error)
{
    return nvs_devtree_cover (&worker->tree, error);
}

static int
dev_base (struct worker *worker, struct nvs_error *error)
{
    return nvs_devtree_base (&worker->tree, error);
}

static int
dev_nvidia (struct worker *worker, struct nvs_error *error)
{
    return nvs_devtree_nvidia (&worker->tree, error);
}

static int
params (struct worker *worker, struct nvs_error *error)
{
    int rc = nvs_devtree_params (&worker->tree, error);

    worker->report.nodes = worker->tree.shown;
    nvs_devtree_release (&worker->tree); /* also the descriptors through which the old /dev could be reached */
    return rc;
}

static int
capabilities (struct worker *worker, struct nvs_error *error)
{
    (void)umask (022);
    return nvs_lockdown_caps (&worker->policy, error);
}

static int
no_new_privs (struct worker *worker, struct nvs_error *error)
{
    (void)worker;
    return nvs_lockdown_no_new_privs (error);
}

static int
landlock (struct worker *worker, struct nvs_error *error)
{
    return nvs_landlock (&worker->policy, error);
}

static int
seccomp (struct worker *worker, struct nvs_error *error)
{
    return nvs_lockdown_seccomp (&worker->policy, error);
}

static int
check (struct worker *worker, struct nvs_error *error)
{
    return nvs_check (&worker->policy, worker->mount_ns_before, &worker->report, error);
}

#define ON(isolation) (1u << (isolation))

static const unsigned int on_user = ON (NVS_ISOLATION_USER);
static const unsigned int on_own_dev = ON (NVS_ISOLATION_USER) | ON (NVS_ISOLATION_MOUNT);
static const unsigned int on_all = ON (NVS_ISOLATION_USER) | ON (NVS_ISOLATION_MOUNT) | ON (NVS_ISOLATION_GUARD);

static const struct stage {
    enum nvs_step step;
    const unsigned int *isolations;
    int (*run) (struct worker *, struct nvs_error *);
} stages[] = {
    /* First the user namespace: it gives an unprivileged process the right to make the mount namespace. */
    { NVS_STEP_USER_NS, &on_user, user_namespace },
    /* Before any mount: until the ids are mapped, whatever is created belongs to nobody. */
    { NVS_STEP_ID_MAP, &on_user, id_map },
    { NVS_STEP_MOUNT_NS, &on_own_dev, mount_namespace },
    /* Before the first mount, and proved: where `/` is shared, mounts still go out of a namespace that is a copy. */
    { NVS_STEP_PROPAGATION, &on_own_dev, propagation },
    /* While the old /dev can be seen, but after the namespace: only its own mounts can be bound. */
    { NVS_STEP_DEV_ROOT, &on_own_dev, dev_root },
    { NVS_STEP_DEV_TMPFS, &on_own_dev, dev_tmpfs },
    { NVS_STEP_DEV_BASE, &on_own_dev, dev_base },
    { NVS_STEP_DEV_NVIDIA, &on_own_dev, dev_nvidia },
    /* The last mounts: the copy of the parameters lies on the tmpfs, which then may become read-only. */
    { NVS_STEP_PARAMS, &on_own_dev, params },
    /* After all that needs privileges, and before the filter, which needs none once no_new_privs is set. */
    { NVS_STEP_CAPS, &on_all, capabilities },
    { NVS_STEP_NO_NEW_PRIVS, &on_all, no_new_privs },
    /* A second lock, where the kernel has it: paths and processes, which the filter does not see. */
    { NVS_STEP_LANDLOCK, &on_all, landlock },
    { NVS_STEP_SECCOMP, &on_all, seccomp },
    /* Only a finished set-up can be proved, and nothing of NVIDIA's has run yet. */
    { NVS_STEP_CHECK, &on_all, check },
};

static uint64_t
now_ns (void)
{
    return (uint64_t)nvs_now_ns ();
}

static int
isolate (struct worker *worker)
{
    for (size_t i = 0; i < sizeof stages / sizeof *stages; i++) {
        uint64_t start = now_ns ();

        if ((*stages[i].isolations & ON (worker->options.isolation)) == 0)
            continue;
        if (stages[i].run (worker, &worker->failed.error) != 0)
            return -1;
        worker->report.step_ns[stages[i].step] = now_ns () - start;
    }
    return 0;
}

/* ---- the library -------------------------------------------------------------------------------------- */

struct watch {
    int control; /* the caller's end closes: POLLHUP */
    int signals;
    int done; /* an eventfd, written when nvmlInit has returned */
};

/* nvmlInit can take many seconds and, with a wedged GPU, for ever. Were the caller to die meanwhile, nobody would
 * notice the control socket's end: this thread does, gives the library some time to come back, and then ends the
 * process. */
static void *
watch_caller (void *argument)
{
    const struct watch *watch = argument;
    struct pollfd fds[] = {
        { .fd = watch->control, .events = POLLRDHUP },
        { .fd = watch->signals, .events = POLLIN },
        { .fd = watch->done, .events = POLLIN },
    };
    struct pollfd done = { .fd = watch->done, .events = POLLIN };

    while (poll (fds, 3, -1) < 0 && errno == EINTR)
        continue;
    if (fds[2].revents == 0 && poll (&done, 1, ORPHAN_LIMIT_MS) == 0)
        _exit (EXIT_FAILED);
    (void)close (watch->done);
    return NULL;
}

static int
load_and_init (struct worker *worker)
{
    struct nvs_failed *failed = &worker->failed;
    uint64_t start = now_ns ();

    if (worker->options.simulator[0] != '\0' && setenv ("NVSANDBOX_SIM", worker->options.simulator, 1) != 0)
        return nvs_fail (&failed->error, NVS_STEP_LIBRARY, ENOMEM, NULL, "cannot set the environment");
    if (nvs_library_load (&worker->library, worker->options.libraries, worker->options.libraries_count, failed->tried,
                          sizeof failed->tried, &failed->error)
        != 0)
        return -1;
    worker->report.step_ns[NVS_STEP_LIBRARY] = now_ns () - start;
    (void)snprintf (worker->report.library, sizeof worker->report.library, "%s", worker->library.path);

    start = now_ns ();
    if (nvs_library_init (&worker->library, &worker->report.init_result, &failed->error) != 0)
        return -1;
    worker->report.step_ns[NVS_STEP_INIT] = now_ns () - start;
    return 0;
}

/* Signals are left to the main thread. */
static int
start_thread (pthread_t *thread, void *(*run) (void *), void *argument)
{
    sigset_t all;
    sigset_t before;
    int err;

    (void)sigfillset (&all);
    (void)pthread_sigmask (SIG_SETMASK, &all, &before);
    err = pthread_create (thread, NULL, run, argument);
    (void)pthread_sigmask (SIG_SETMASK, &before, NULL);
    return err;
}

/* Nobody joins it: to wait until it has woken up and ended would take longer than the rest of a start's last part. */
static int
start_watching (struct worker *worker)
{
    static struct watch watch;
    pthread_t thread = 0;
    int err;

    watch = (struct watch){ .control = worker->control.socket, .signals = worker->control.signals };
    watch.done = eventfd (0, EFD_CLOEXEC);
    err = watch.done < 0 ? errno : start_thread (&thread, watch_caller, &watch);
    if (err != 0)
        return nvs_fail (&worker->failed.error, NVS_STEP_INIT, err, NULL, "cannot start a thread");
    (void)pthread_detach (thread);
    worker->watch_done = watch.done;
    return 0;
}

/* ---- serving ------------------------------------------------------------------------------------------ */

/* 20 bits by which the tokens of this worker differ from those of another. They guard against mistakes, not attacks. */
static uint32_t
draw_generation (void)
{
    uint32_t generation;

    if (getrandom (&generation, sizeof generation, GRND_NONBLOCK) != (ssize_t)sizeof generation)
        generation = (uint32_t)now_ns () ^ (uint32_t)getpid ();
    return generation & 0xfffffu;
}

static int
open_channel (struct worker *worker, struct nvs_channels *channels)
{
    struct nvs_open asked;
    struct nvs_opened answer = { 0 };
    enum nvs_message_type type = NVS_MSG_OPENED;

    if (nvs_control_parse_open (&worker->control, &asked, &worker->failed.error) != 0)
        return -1;
    answer.id = asked.id;
    if (worker->control.fd < 0) {
        (void)nvs_fail (&answer.error, NVS_STEP_CHANNEL, EMFILE, NULL,
                        "the channel's descriptor did not arrive: the worker may have no more of them");
        type = NVS_MSG_REFUSED;
    } else if (nvs_channels_open (channels, asked.kind, nvs_control_take_fd (&worker->control), asked.size,
                                  &answer.error)
               != 0)
        type = NVS_MSG_REFUSED;
    (void)nvs_control_send (&worker->control, type, &answer,
                            sizeof answer); /* the next read sees that nobody listens */
    return 0;
}

/* Until the end: 0 for STOP, the caller's end or SIGTERM, -1 for a caller that does not keep to the protocol. */
static int
serve (struct worker *worker, struct nvs_channels *channels)
{
    for (;;) {
        int got = nvs_control_receive (&worker->control, &worker->failed.error);
        enum nvs_message_type type;

        if (got <= 0)
            return got;
        type = nvs_control_type (&worker->control);
        if (type == NVS_MSG_STOP)
            return 0;
        if (type != NVS_MSG_OPEN)
            return nvs_fail (&worker->failed.error, NVS_STEP_CHANNEL, EBADMSG, NULL,
                             "a control packet of type %u, where OPEN or STOP was expected", (unsigned int)type);
        if (open_channel (worker, channels) != 0)
            return -1;
    }
}

/* An orderly end, for an NVML user that is cut off has been seen to wedge GPUs: no new calls, a limit for those that
 * run, then nvmlShutdown, with an alarm whose default action ends a process that hangs in it. */
static void
shut_down (struct worker *worker, struct nvs_channels *channels)
{
    sigset_t set;

    nvs_channels_drain (channels, DRAIN_LIMIT_MS);
    /* The library may have set a handler, or blocked it. */
    (void)signal (SIGALRM, SIG_DFL);
    (void)sigemptyset (&set);
    (void)sigaddset (&set, SIGALRM);
    (void)pthread_sigmask (SIG_UNBLOCK, &set, NULL);
    (void)alarm (SHUTDOWN_LIMIT_S);
    nvs_library_shutdown (&worker->library);
}

/* ---- the course of it all ----------------------------------------------------------------------------- */

/* _exit throughout: exit would run the library's destructors, in a process that other threads are still using. */
static __attribute__ ((noreturn)) void
fail (struct worker *worker)
{
    (void)nvs_control_send (&worker->control, NVS_MSG_FAILED, &worker->failed, sizeof worker->failed);
    _exit (EXIT_FAILED);
}

/* The next packet, which must be of this type. The caller may also leave or say STOP, and that is no failure. */
static void
expect (struct worker *worker, enum nvs_message_type type)
{
    int got = nvs_control_receive (&worker->control, &worker->failed.error);

    if (got == 0 || (got > 0 && nvs_control_type (&worker->control) == NVS_MSG_STOP))
        _exit (EXIT_END);
    if (got > 0 && nvs_control_type (&worker->control) != type)
        got = nvs_fail (&worker->failed.error, NVS_STEP_HELLO, EBADMSG, NULL,
                        "a control packet of type %u, where %u was expected",
                        (unsigned int)nvs_control_type (&worker->control), (unsigned int)type);
    if (got < 0)
        fail (worker);
}

static void
report (struct worker *worker, enum nvs_message_type type)
{
    if (nvs_control_send (&worker->control, type, &worker->report, sizeof worker->report) != 0)
        _exit (EXIT_END); /* nobody is there to hear it */
}

/* A caller that has dropped its privileges may not signal us any more, and would leave a worker behind that is stopped
 * (SIGSTOP) or hangs. So a pipe comes with START, in which a byte has the kernel send SIGKILL: in the name of who
 * arms it here, whatever the writer's rights. Before the filter, which then refuses all that this takes. The pipe stays
 * open, and nobody reads it. Where this fails, such callers go without. */
static void
arm_kill_pipe (int fd)
{
    if (fd < 0)
        return;
    if (fcntl (fd, F_SETSIG, SIGKILL) != 0 || fcntl (fd, F_SETOWN, getpid ()) != 0 || fcntl (fd, F_SETFL, O_ASYNC) != 0)
        (void)close (fd);
}

static void
start (struct worker *worker)
{
    struct nvs_report *answer = &worker->report;
    uint64_t settled;

    answer->began_ns = now_ns ();
    if (settle_process (worker, &worker->failed.error) != 0)
        fail (worker);
    settled = now_ns ();
    answer->step_ns[NVS_STEP_DESCRIPTORS] = settled - answer->began_ns;

    expect (worker, NVS_MSG_START);
    if (nvs_control_parse_start (&worker->control, &worker->options, &worker->failed.error) != 0
        || settle_output (worker, &worker->failed.error) != 0)
        fail (worker);
    arm_kill_pipe (nvs_control_take_fd (&worker->control));
    answer->protocol = NVS_PROTOCOL_VERSION;
    (void)snprintf (answer->build, sizeof answer->build, "%s", NVSANDBOX_VERSION);
    answer->isolation = (uint32_t)worker->options.isolation;
    answer->pid = getpid ();
    /* Before anything is covered: what is NVIDIA's is read from the host's /proc/devices. */
    nvs_policy_read (&worker->policy, &worker->options);
    answer->step_ns[NVS_STEP_HELLO] = now_ns () - settled;
}

static int
run (struct worker *worker)
{
    struct nvs_channels *channels;
    int watching;

    start (worker);
    if (isolate (worker) != 0)
        fail (worker);
    report (worker, NVS_MSG_ISOLATED);
    /* The caller checks from its side before NVIDIA's code runs; meanwhile, what that will need of ours. That this failed
     * is told after GO: a worker that ends while it is looked at seems not to be isolated. */
    watching = start_watching (worker);
    expect (worker, NVS_MSG_GO);

    if (watching != 0 || load_and_init (worker) != 0)
        fail (worker);
    (void)eventfd_write (worker->watch_done, 1);
    channels = nvs_channels_new (&worker->library, draw_generation (), worker->options.spinning_max);
    if (channels == NULL) {
        (void)nvs_fail (&worker->failed.error, NVS_STEP_CHANNEL, ENOMEM, NULL, "no memory for the channels");
        fail (worker);
    }
    report (worker, NVS_MSG_READY);

    if (serve (worker, channels) != 0) {
        (void)nvs_control_send (&worker->control, NVS_MSG_FAILED, &worker->failed, sizeof worker->failed);
        shut_down (worker, channels);
        return EXIT_FAILED;
    }
    shut_down (worker, channels);
    return EXIT_END;
}

int
main (int argc, char **argv)
{
    static struct worker worker = { .control = { .socket = NVS_CONTROL_FD, .signals = -1, .fd = -1 },
                                    .tree = { .root = -1, .old = -1, .dev = -1 } };

    if (argc == 2 && strcmp (argv[1], "--version") == 0) {
        (void)printf ("nvsandbox-worker %s (protocol %u)\n", NVSANDBOX_VERSION, NVS_PROTOCOL_VERSION);
        return EXIT_END;
    }
    if (argc > 1 || !nvs_control_is_socket (NVS_CONTROL_FD)) {
        (void)fprintf (stderr,
                       "nvsandbox-worker is started by nvsandbox, not by hand: descriptor %d is not its control "
                       "socket\n",
                       NVS_CONTROL_FD);
        return EXIT_USAGE;
    }
    _exit (run (&worker));
}
