/* SPDX-License-Identifier: Apache-2.0 */
/* Argument: the fake NVML. Prints what a call costs over a lane and over a pipe to a worker in another process.
 * The caller spins for its answer; the frames are made beforehand. */
#include <stdio.h>
#include <sys/wait.h>
#include <time.h>

#include "caller.h"

#define CALLS 200000

static struct caller caller;
static struct building b;
static int64_t times[CALLS];

static int64_t
now_ns (void)
{
    struct timespec t;

    (void)clock_gettime (CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static int
compare (const void *a, const void *z)
{
    const int64_t x = *(const int64_t *)a;
    const int64_t y = *(const int64_t *)z;

    return (x > y) - (x < y);
}

static _Noreturn void
worker (const char *library, uint32_t kind, int fd)
{
    struct nvs_library lib = { 0 };
    struct nvs_channels *channels;
    struct nvs_error error;
    char tried[512];

    if (nvs_library_load (&lib, &library, 1, tried, sizeof tried, &error) < 0)
        _exit (1);
    channels = nvs_channels_new (&lib, 1, 1);
    if (channels == NULL || nvs_channels_open (channels, kind, fd, NVS_LANE_SIZE, &error) < 0)
        _exit (1);
    while (nvs_channels_count (channels) > 0)
        (void)usleep (10000);
    _exit (0);
}

static int
measure (const char *library, uint32_t kind, const char *name)
{
    int fd = kind == NVS_CHANNEL_LANE ? caller_make_lane (&caller) : caller_make_pipe (&caller);
    pid_t pid = fork ();

    if (pid < 0)
        return 1;
    if (pid == 0) {
        if (kind == NVS_CHANNEL_PIPE)
            (void)close (caller.fd);
        worker (library, kind, fd);
    }
    (void)close (fd);
    caller.spin = 100000;
    build_call (&b, caller_resolve (&caller, "nvmlFakeSum"), 0, 64);
    for (uint64_t i = 0; i < 5; i++)
        build_arg (&b, NVS_ARG_VALUE, 0, i);
    build_arg (&b, NVS_ARG_DATA, 0, 0);
    for (int i = 0; i < CALLS; i++) {
        int64_t start = now_ns ();

        if (!caller_ask (&caller, &b) || caller.reply.status != NVS_STATUS_OK)
            return 1;
        times[i] = now_ns () - start;
    }
    qsort (times, CALLS, sizeof times[0], compare);
    printf ("%s: p50 %lld ns, p99 %lld ns\n", name, (long long)times[CALLS / 2], (long long)times[CALLS * 99 / 100]);
    caller_close (&caller);
    return waitpid (pid, NULL, 0) == pid ? 0 : 1;
}

int
main (int argc, char **argv)
{
    if (argc != 2)
        return 99;
    return measure (argv[1], NVS_CHANNEL_LANE, "lane") + measure (argv[1], NVS_CHANNEL_PIPE, "pipe");
}
