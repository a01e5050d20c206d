/* SPDX-License-Identifier: Apache-2.0 */
#include "core.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <unistd.h>

/*
 * posix_spawn, which in glibc and musl is clone(CLONE_VM | CLONE_VFORK) and exec. A fork would copy the page tables of
 * the caller (milliseconds for gigabytes) and leave, in a threaded process, every lock of every other thread
 * locked in the child. Here nothing of the caller runs in the child but what the library does between the two
 * calls, with all signals blocked.
 *
 * Other descriptors of the caller are closed by the worker, as the first thing that it does: closing them in the child
 * takes posix_spawn_file_actions_addclosefrom_np, which only glibc >= 2.34 has. Python's own are close-on-exec anyway.
 */
int
nvs_spawn (const char *path, char *const *envp, int control, int32_t *pid, struct nvs_error *error)
{
    char *argv[] = { "nvsandbox-worker", NULL };
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attributes;
    sigset_t none;
    sigset_t all;
    pid_t child = 0;
    int high;
    int err;

    /* Out of the way of the numbers that the child assigns: dup2 onto itself would keep FD_CLOEXEC in old C libraries,
     * and a caller whose 0 to 2 are closed may well hand us one of those. */
    high = fcntl (control, F_DUPFD_CLOEXEC, NVS_CONTROL_FD + 1);
    if (high < 0)
        return nvs_fail (error, NVS_STEP_SPAWN, errno, path, "duplicating the control socket");

    err = posix_spawn_file_actions_init (&actions);
    if (err != 0) {
        (void)close (high);
        return nvs_fail (error, NVS_STEP_SPAWN, err, path, "posix_spawn_file_actions_init");
    }
    err = posix_spawnattr_init (&attributes);
    if (err != 0) {
        (void)posix_spawn_file_actions_destroy (&actions);
        (void)close (high);
        return nvs_fail (error, NVS_STEP_SPAWN, err, path, "posix_spawnattr_init");
    }

    (void)sigemptyset (&none);
    (void)sigfillset (&all);
    /* A session of its own: Ctrl-C in the caller's terminal is for the caller. Default dispositions and an empty mask:
     * a caller that ignores SIGTERM, or has it blocked, would otherwise hand that down through exec. */
    err = posix_spawnattr_setflags (&attributes, POSIX_SPAWN_SETSID | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
    if (err == 0)
        err = posix_spawnattr_setsigmask (&attributes, &none);
    if (err == 0)
        err = posix_spawnattr_setsigdefault (&attributes, &all);
    if (err == 0)
        err = posix_spawn_file_actions_adddup2 (&actions, high, NVS_CONTROL_FD);
    if (err == 0)
        err = posix_spawn (&child, path, &actions, &attributes, argv, envp);

    (void)posix_spawnattr_destroy (&attributes);
    (void)posix_spawn_file_actions_destroy (&actions);
    (void)close (high);
    if (err == EPERM || err == ENOSYS || err == EACCES)
        return nvs_fail (error, NVS_STEP_SPAWN, err, path,
                         "starting the worker program: %s, or clone3, vfork or execve is refused by a seccomp filter, "
                         "such as a container runtime's that is older than the C library",
                         err == EACCES ? "it may not be executed" : "a security module forbids it");
    if (err != 0)
        return nvs_fail (error, NVS_STEP_SPAWN, err, path, "starting the worker program");
    *pid = (int32_t)child;
    return 0;
}
