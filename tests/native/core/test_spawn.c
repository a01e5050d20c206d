/* SPDX-License-Identifier: Apache-2.0 */
/* Starting a worker: what it inherits and what not, and that nothing is left where it cannot be started. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../worker/tap.h"
#include "core.h"

static char *environment[] = { "NVSANDBOX_TEST=yes", NULL };

static int
open_descriptors (void)
{
    int count = 0;

    for (int fd = 0; fd < 256; fd++)
        count += fcntl (fd, F_GETFD) >= 0;
    return count;
}

/* Starts `path` with `theirs` as its control socket, and reads what it says at the other end. */
static void
check_start (const char *path, int ours, int theirs)
{
    struct nvs_error error;
    char text[256] = "";
    int status = 0;
    int32_t pid = 0;

    SAME (nvs_spawn (path, environment, theirs, &pid, &error), 0);
    TRUE (pid > 0);
    TRUE (recv (ours, text, sizeof text - 1, 0) > 0);
    SAME_TEXT (text, "argc=1 name=nvsandbox-worker leader=1 blocked=0 ignored=0 env=yes path=0");
    SAME (waitpid (pid, &status, 0), pid);
    SAME (WIFEXITED (status) ? WEXITSTATUS (status) : -1, 7);
}

static void
test_start (const char *path)
{
    int before = open_descriptors ();
    sigset_t all;
    int pair[2];

    /* A caller that blocks and ignores does not hand that down. */
    (void)sigfillset (&all);
    (void)sigprocmask (SIG_SETMASK, &all, NULL);
    (void)signal (SIGTERM, SIG_IGN);
    (void)signal (SIGINT, SIG_IGN);
    SAME (socketpair (AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
    check_start (path, pair[0], pair[1]);
    (void)close (pair[0]);
    (void)close (pair[1]);
    SAME (open_descriptors (), before);
}

/* The numbers that the child assigns may be the caller's own: 3, or 0 where that was closed. */
static void
test_numbers (const char *path)
{
    static const int numbers[] = { NVS_CONTROL_FD, 0 };
    int saved = fcntl (0, F_DUPFD_CLOEXEC, 100);
    int pair[2];

    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        SAME (socketpair (AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
        pair[0] = fcntl (pair[0], F_DUPFD_CLOEXEC, 50);
        pair[1] = fcntl (pair[1], F_DUPFD_CLOEXEC, 50);
        SAME (dup3 (pair[1], numbers[i], O_CLOEXEC), numbers[i]);
        check_start (path, pair[0], numbers[i]);
        (void)close (numbers[i]);
    }
    (void)dup2 (saved, 0);
}

static void
test_failures (const char *path)
{
    struct nvs_error error;
    int before = open_descriptors ();
    int32_t pid = -5;
    int pair[2];

    SAME (socketpair (AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
    SAME (nvs_spawn ("/nonexistent/worker", environment, pair[1], &pid, &error), -1);
    SAME (error.step, NVS_STEP_SPAWN);
    SAME (error.err, ENOENT);
    SAME_TEXT (error.path, "/nonexistent/worker");
    SAME (nvs_spawn ("/", environment, pair[1], &pid, &error), -1);
    SAME (error.err, EACCES);
    SAME (nvs_spawn (path, environment, 99, &pid, &error), -1); /* no such descriptor */
    SAME (error.err, EBADF);
    SAME (pid, -5);
    SAME (waitpid (-1, NULL, WNOHANG), -1); /* no child is left */
    (void)close (pair[0]);
    (void)close (pair[1]);
    SAME (open_descriptors (), before);
}

int
main (int argc, char **argv)
{
    if (argc != 2) {
        printf ("Bail out! expected the path of the program to start\n");
        return 1;
    }
    test_start (argv[1]);
    /* There a vfork is a fork, and the child cannot tell its parent that nothing came of it. */
    if (!tap_under_valgrind ())
        test_failures (argv[1]);
    test_numbers (argv[1]);
    return tap_done ();
}
