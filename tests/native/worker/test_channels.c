/* SPDX-License-Identifier: Apache-2.0 */
/* Argument: the fake NVML. The test is the caller, over a lane and over a pipe. */
#include <dirent.h>
#include <poll.h>
#include <pthread.h>
#include <sys/resource.h>
#include <time.h>

#include "caller.h"
#include "tap.h"

#define GENERATION 0x54321u

static struct nvs_library lib;
static struct nvs_channels *channels;
static struct nvs_error error;
static struct building b;

static int64_t
now_ms (clockid_t which)
{
    struct timespec t;

    (void)clock_gettime (which, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

static void
sleep_ms (int ms)
{
    (void)poll (NULL, 0, ms);
}

static struct caller *
connect_caller (uint32_t kind)
{
    struct caller *caller = calloc (1, sizeof *caller);
    int fd;

    if (caller == NULL)
        abort ();
    fd = kind == NVS_CHANNEL_LANE ? caller_make_lane (caller) : caller_make_pipe (caller);
    if (nvs_channels_open (channels, kind, fd, NVS_LANE_SIZE, &error) < 0) {
        printf ("# refused: %s\n", error.detail);
        abort ();
    }
    return caller;
}

static void
disconnect (struct caller *caller)
{
    caller_close (caller);
    free (caller);
}

static uint32_t
count_falls_to (uint32_t wanted)
{
    for (int i = 0; i < 5000 && nvs_channels_count (channels) != wanted; i++)
        sleep_ms (1);
    return nvs_channels_count (channels);
}

static void
test_calls (uint32_t kind)
{
    struct caller *caller = connect_caller (kind);
    uint32_t sum = caller_resolve (caller, "nvmlFakeSum");
    uint32_t get;
    uint64_t device;

    TRUE (sum != 0);
    SAME (caller_resolve (caller, "nvmlFakeSum"), sum);
    SAME (caller_resolve (caller, "nvmlNone"), 0);
    SAME (caller->reply.status, NVS_STATUS_NO_SYMBOL);
    SAME (caller_resolve (caller, "system"), 0);
    SAME (caller->reply.status, NVS_STATUS_NO_SYMBOL);
    build_resolve (&b, "nvmlFakeSum");
    b.request.data_len--; /* no NUL */
    TRUE (caller_ask (caller, &b));
    SAME (caller->reply.status, NVS_STATUS_BAD_FRAME);

    build_call (&b, sum, 0, 8);
    for (uint64_t i = 1; i <= 5; i++)
        build_arg (&b, NVS_ARG_VALUE, 0, i << 40);
    build_arg (&b, NVS_ARG_DATA, 0, 0);
    TRUE (caller_ask (caller, &b));
    SAME (caller->reply.status, NVS_STATUS_OK);
    SAME (caller->reply.result, 0);
    SAME (caller_u64 (caller, 0), 55ull << 40);

    build_call (&b, caller_resolve (caller, "nvmlFakeUpperHalf"), 0, 0);
    TRUE (caller_ask (caller, &b));
    SAME (caller->reply.result, 7);

    build_call (&b, 0, 0, 0);
    TRUE (caller_ask (caller, &b));
    SAME (caller->reply.status, NVS_STATUS_BAD_FRAME);
    build_call (&b, 4096, 0, 0);
    TRUE (caller_ask (caller, &b));
    SAME (caller->reply.status, NVS_STATUS_BAD_FRAME);

    build_call (&b, caller_resolve (caller, "nvmlDeviceGetHandleByIndex_v2"), 0, 8);
    build_arg (&b, NVS_ARG_VALUE, 0, 5);
    build_arg (&b, NVS_ARG_DATA, 0, 0);
    build_reloc (&b, NVS_RELOC_HANDLE, 1, 0, 1, 0);
    TRUE (caller_ask (caller, &b));
    device = caller_u64 (caller, 0);
    SAME (device >> 52, NVS_TOKEN_TAG);
    get = caller_resolve (caller, "nvmlDeviceGetIndex");
    build_call (&b, get, 0, 4);
    build_arg (&b, NVS_ARG_HANDLE, 1, device);
    build_arg (&b, NVS_ARG_DATA, 0, 0);
    TRUE (caller_ask (caller, &b));
    SAME (caller->reply.status, NVS_STATUS_OK);
    SAME (caller->data[0], 5);
    b.request.args[0].value = device + (1ull << 32);
    TRUE (caller_ask (caller, &b));
    SAME (caller->reply.status, NVS_STATUS_STALE_HANDLE);
    SAME (caller->reply.data_len, 0);

    build_call (&b, caller_resolve (caller, "nvmlErrorString"), NVS_CALL_RETURNS_STRING, 0);
    build_arg (&b, NVS_ARG_VALUE, 0, 0);
    TRUE (caller_ask (caller, &b));
    SAME (caller->reply.result, 1);
    SAME_TEXT (caller->strings, "Success");
    b.request.args[0].value = 5000;
    TRUE (caller_ask (caller, &b));
    SAME (strlen (caller->strings), NVS_STRING_MAX - 1);
    b.request.args[0].value = 1;
    TRUE (caller_ask (caller, &b));
    SAME (caller->reply.result, 0);
    SAME (caller->reply.strings_len, 0);

    /* struct fake_nested at 0, its values at 64, a string of ours at 96 */
    build_call (&b, caller_resolve (caller, "nvmlFakeNested"), 0, 104);
    build_arg (&b, NVS_ARG_DATA, 0, 0);
    build_u64 (&b, 0, 1 + 64);
    build_u64 (&b, 8, 3);
    build_u64 (&b, 32, 1 + 96);
    for (size_t i = 0; i < 3; i++)
        build_u64 (&b, 64 + 8 * i, 10 + i);
    build_u64 (&b, 48, device);
    build_reloc (&b, NVS_RELOC_POINTER, 0, 0, 1, 0);
    build_reloc (&b, NVS_RELOC_STRING, 0, 16, 3, 8);
    build_reloc (&b, NVS_RELOC_HANDLE, 1, 40, 2, 8);
    TRUE (caller_ask (caller, &b));
    SAME (caller->reply.status, NVS_STATUS_OK);
    SAME (caller_u64 (caller, 0), 1 + 64);
    SAME (caller_u64 (caller, 16), NVS_STRING_OUT);
    SAME (caller_u64 (caller, 24), NVS_STRING_OUT);
    SAME (caller_u64 (caller, 32), 1 + 96);
    SAME (caller_u64 (caller, 40) >> 52, NVS_TOKEN_TAG);
    SAME (caller_u64 (caller, 48), 0);
    SAME (caller_u64 (caller, 64 + 16), 24);
    SAME_TEXT (caller->strings, "a name of the library's");

    disconnect (caller);
    SAME (count_falls_to (0), 0);
}

static uint64_t
event_set (struct caller *caller)
{
    build_call (&b, caller_resolve (caller, "nvmlEventSetCreate"), 0, 8);
    build_arg (&b, NVS_ARG_DATA, 0, 0);
    build_reloc (&b, NVS_RELOC_HANDLE, 2, 0, 1, 0);
    return caller_ask (caller, &b) ? caller_u64 (caller, 0) : 0;
}

static uint32_t
plain (struct caller *caller, const char *name)
{
    build_call (&b, caller_resolve (caller, name), 0, 0);
    return caller_ask (caller, &b) ? (uint32_t)caller->reply.result : UINT32_MAX;
}

static void
test_lifetimes (void)
{
    struct caller *caller = connect_caller (NVS_CHANNEL_LANE);
    uint64_t first = event_set (caller);
    uint64_t second;
    uint32_t release = caller_resolve (caller, "nvmlEventSetFree");

    build_call (&b, release, NVS_CALL_RETIRES, 0);
    build_arg (&b, NVS_ARG_HANDLE, 2, first);
    TRUE (caller_ask (caller, &b));
    SAME (caller->reply.status, NVS_STATUS_OK);
    second = event_set (caller); /* the same address in the library */
    TRUE (second != first);
    build_call (&b, release, NVS_CALL_RETIRES, 0);
    build_arg (&b, NVS_ARG_HANDLE, 2, first);
    TRUE (caller_ask (caller, &b));
    SAME (caller->reply.status, NVS_STATUS_STALE_HANDLE);

    SAME (plain (caller, "nvmlInit_v2"), 0);
    SAME (plain (caller, "nvmlInit_v2"), 0);
    SAME (lib.inits, 2);
    SAME (plain (caller, "nvmlShutdown"), 0);
    SAME (event_set (caller), second);
    SAME (plain (caller, "nvmlShutdown"), 0);
    SAME (plain (caller, "nvmlShutdown"), 1); /* one too many: NVML_ERROR_UNINITIALIZED */
    SAME (lib.inits, 0);
    TRUE (event_set (caller) != second); /* after the last shutdown old handles are dead */
    disconnect (caller);
    SAME (count_falls_to (0), 0);
}

static void
test_bad_lanes (void)
{
    struct caller caller = { .fd = -1 };
    struct caller *over = connect_caller (NVS_CHANNEL_LANE);
    int fd = memfd_create ("unsealed", MFD_CLOEXEC | MFD_ALLOW_SEALING);

    SAME (ftruncate (fd, NVS_LANE_SIZE), 0);
    SAME (nvs_channels_open (channels, NVS_CHANNEL_LANE, fd, NVS_LANE_SIZE, &error), -1);
    SAME (error.step, NVS_STEP_CHANNEL);
    SAME (error.err, EPERM);
    SAME (fcntl (fd, F_GETFD), -1); /* it was taken, and closed */
    fd = caller_make_lane (&caller);
    SAME (nvs_channels_open (channels, NVS_CHANNEL_LANE, fd, NVS_LANE_SIZE * 2, &error), -1);
    SAME (error.err, EINVAL);
    caller_close (&caller);
    fd = caller_make_lane (&caller);
    SAME (nvs_channels_open (channels, NVS_CHANNEL_LANE, fd, 16, &error), -1);
    caller_close (&caller);
    fd = caller_make_lane (&caller);
    SAME (nvs_channels_open (channels, 7, fd, NVS_LANE_SIZE, &error), -1);
    SAME (nvs_channels_open (channels, NVS_CHANNEL_LANE, open ("/dev/null", O_RDWR | O_CLOEXEC), NVS_LANE_SIZE, &error),
          -1);
    SAME (nvs_channels_open (channels, NVS_CHANNEL_PIPE, open ("/dev/null", O_RDWR | O_CLOEXEC), 0, &error), -1);
    SAME (nvs_channels_open (channels, NVS_CHANNEL_PIPE, socket (AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0), 0, &error),
          -1);
    SAME (nvs_channels_open (channels, NVS_CHANNEL_PIPE, -1, 0, &error), -1);
    SAME (error.err, EBADF);
    caller_close (&caller);

    /* Lengths and bytes that cannot be get an answer, and the lane goes on. */
    TRUE (caller_send (over, UINT32_MAX) && caller_wait (over));
    SAME (over->reply.status, NVS_STATUS_BAD_FRAME);
    TRUE (caller_send (over, 0) && caller_wait (over));
    SAME (over->reply.status, NVS_STATUS_BAD_FRAME);
    memset (over->frame, 0xff, NVS_LANE_FRAME);
    TRUE (caller_send (over, NVS_LANE_FRAME) && caller_wait (over));
    SAME (over->reply.status, NVS_STATUS_BAD_FRAME);
    TRUE (caller_resolve (over, "nvmlShutdown") != 0);
    disconnect (over);
    SAME (count_falls_to (0), 0);
}

static void
test_bad_pipes (void)
{
    struct caller *caller = connect_caller (NVS_CHANNEL_PIPE);
    uint32_t length = NVS_FRAME_MAX + 1;
    int pair[2];

    TRUE (caller_send (caller, 0) && caller_wait (caller));
    SAME (caller->reply.status, NVS_STATUS_BAD_FRAME);
    TRUE (send (caller->fd, &length, sizeof length, 0) == sizeof length);
    SAME (recv (caller->fd, &length, 1, 0), 0); /* closed */
    SAME (count_falls_to (0), 0);
    disconnect (caller);

    caller = connect_caller (NVS_CHANNEL_PIPE);
    length = 1000;
    TRUE (send (caller->fd, &length, sizeof length, 0) == sizeof length);
    TRUE (send (caller->fd, &length, 3, 0) == 3); /* dies in the middle of a frame */
    disconnect (caller);
    SAME (count_falls_to (0), 0);

    /* Both ends non-blocking, as a caller with an event loop makes them. */
    if (socketpair (AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair) < 0)
        abort ();
    SAME (nvs_channels_open (channels, NVS_CHANNEL_PIPE, pair[1], 0, &error), 0);
    sleep_ms (20);
    SAME (nvs_channels_count (channels), 1);
    (void)close (pair[0]);
    SAME (count_falls_to (0), 0);
}

/* Over a pipe, more than a lane holds and more than a socket buffers. */
static void
test_large (void)
{
    static unsigned char big[5u << 20];
    struct caller *caller = connect_caller (NVS_CHANNEL_PIPE);
    uint32_t length = sizeof big;
    struct nvs_reply reply;
    uint64_t sum;

    build_call (&b, caller_resolve (caller, "nvmlFakeSum"), 0, 8);
    for (uint64_t i = 1; i <= 5; i++)
        build_arg (&b, NVS_ARG_VALUE, 0, i);
    build_arg (&b, NVS_ARG_DATA, 0, sizeof big - 128 - 8);
    b.request.data_len = sizeof big - 128;
    memcpy (big, &b.request, sizeof b.request);
    for (size_t i = 128; i < sizeof big; i++)
        big[i] = (unsigned char)(i * 7);
    TRUE (send (caller->fd, &length, sizeof length, 0) == sizeof length);
    TRUE (send (caller->fd, big, sizeof big, 0) == (ssize_t)sizeof big);
    TRUE (caller_receive (caller->fd, &length, sizeof length));
    SAME (length, sizeof reply + sizeof big - 128);
    TRUE (caller_receive (caller->fd, &reply, sizeof reply));
    TRUE (caller_receive (caller->fd, big, reply.data_len));
    SAME (reply.status, NVS_STATUS_OK);
    memcpy (&sum, big + reply.data_len - 8, sizeof sum);
    SAME (sum, 55);
    SAME (big[1000], (unsigned char)((1000 + 128) * 7));
    disconnect (caller);
    SAME (count_falls_to (0), 0);
}

static void *
many_calls (void *argument)
{
    static _Thread_local struct building mine;
    const uint32_t kind = *(const uint32_t *)argument;
    struct caller *caller = connect_caller (kind);
    uint32_t sum = caller_resolve (caller, "nvmlFakeSum");
    uint64_t wrong = sum == 0;
    unsigned seed = (unsigned)(uintptr_t)caller;

    for (uint64_t i = 0; i < 3000; i++) {
        build_call (&mine, sum, 0, 8);
        build_arg (&mine, NVS_ARG_VALUE, 0, i);
        build_arg (&mine, NVS_ARG_VALUE, 0, (uintptr_t)caller);
        for (int k = 0; k < 3; k++)
            build_arg (&mine, NVS_ARG_VALUE, 0, 0);
        build_arg (&mine, NVS_ARG_DATA, 0, 0);
        caller->spin = (unsigned)rand_r (&seed) % 2000; /* both ends now spin, now sleep */
        wrong += !caller_ask (caller, &mine) || caller_u64 (caller, 0) != i + 2 * (uintptr_t)caller;
        if (rand_r (&seed) % 64 == 0)
            (void)usleep ((unsigned)rand_r (&seed) % 200);
    }
    disconnect (caller);
    return (void *)(uintptr_t)wrong;
}

/* No answer goes to another's question, and no wake-up is lost. */
static void
test_threads (void)
{
    static const uint32_t kinds[] = { NVS_CHANNEL_LANE, NVS_CHANNEL_PIPE };
    pthread_t threads[6];
    void *wrong;

    for (int i = 0; i < 6; i++)
        TRUE (pthread_create (&threads[i], NULL, many_calls, (void *)(uintptr_t)&kinds[i == 5]) == 0);
    for (int i = 0; i < 6; i++) {
        (void)pthread_join (threads[i], &wrong);
        SAME ((uintptr_t)wrong, 0);
    }
    SAME (count_falls_to (0), 0);
}

static int
descriptors (void)
{
    DIR *dir = opendir ("/proc/self/fd");
    int count = 0;

    while (dir != NULL && readdir (dir) != NULL)
        count++;
    if (dir != NULL)
        (void)closedir (dir);
    return count;
}

static long
mappings (void)
{
    FILE *maps = fopen ("/proc/self/maps", "r");
    char line[512];
    long lanes = 0;

    while (maps != NULL && fgets (line, sizeof line, maps) != NULL)
        lanes += strstr (line, "memfd:lane") != NULL;
    if (maps != NULL)
        (void)fclose (maps);
    return lanes;
}

static void
test_nothing_left (void)
{
    const int before = descriptors ();
    struct caller *caller;

    for (int i = 0; i < 300; i++) {
        caller = connect_caller (i % 2 != 0 ? NVS_CHANNEL_LANE : NVS_CHANNEL_PIPE);
        if (caller_resolve (caller, "nvmlShutdown") == 0)
            TRUE_FOR (0, "a call on one of many channels");
        disconnect (caller);
    }
    SAME (count_falls_to (0), 0);
    SAME (descriptors (), before);
    SAME (mappings (), 0);
}

static void
test_idle (void)
{
    struct caller *lanes[4];
    int64_t before;

    for (int i = 0; i < 4; i++) {
        lanes[i] = connect_caller (NVS_CHANNEL_LANE);
        TRUE (caller_resolve (lanes[i], "nvmlShutdown") != 0);
    }
    sleep_ms (50);
    before = now_ms (CLOCK_PROCESS_CPUTIME_ID);
    sleep_ms (300);
    TRUE_FOR (now_ms (CLOCK_PROCESS_CPUTIME_ID) - before < 10, "idle lanes use no CPU");
    for (int i = 0; i < 4; i++)
        disconnect (lanes[i]);
    SAME (count_falls_to (0), 0);
}

/* The last: it stops the channels for good. */
static void
test_drain (void)
{
    struct caller *lane = connect_caller (NVS_CHANNEL_LANE);
    struct caller *other = connect_caller (NVS_CHANNEL_PIPE);
    struct caller *idle = connect_caller (NVS_CHANNEL_LANE);
    uint32_t sleeper = caller_resolve (lane, "nvmlFakeSleep");
    struct caller late = { .fd = -1 };
    int64_t start;

    build_call (&b, sleeper, 0, 0);
    build_arg (&b, NVS_ARG_VALUE, 0, 200);
    start = now_ms (CLOCK_MONOTONIC);
    TRUE (caller_send (lane, build_write (&b, lane->frame)));
    TRUE (caller_send (other, build_write (&b, other->frame)));
    sleep_ms (50);
    nvs_channels_drain (channels, 20);
    TRUE_FOR (now_ms (CLOCK_MONOTONIC) - start < 180, "a limit ends the wait for running calls");
    nvs_channels_drain (channels, 10000);
    TRUE_FOR (now_ms (CLOCK_MONOTONIC) - start >= 195, "a drain waits for running calls");
    TRUE_FOR (now_ms (CLOCK_MONOTONIC) - start < 5000, "and not longer");
    TRUE (caller_wait (lane)); /* what ran has its answer */
    SAME (lane->reply.status, NVS_STATUS_OK);
    TRUE (caller_wait (other));
    SAME (other->reply.status, NVS_STATUS_OK);
    SAME (nvs_channels_open (channels, NVS_CHANNEL_PIPE, caller_make_pipe (&late), 0, &error), -1);
    SAME (error.err, ESHUTDOWN);
    caller_close (&late);
    disconnect (lane);
    disconnect (other);
    disconnect (idle);
    SAME (count_falls_to (0), 0);
}

int
main (int argc, char **argv)
{
    char tried[1024];
    const char *candidate = argc == 2 ? argv[1] : "";

    if (argc != 2 || nvs_library_load (&lib, &candidate, 1, tried, sizeof tried, &error) < 0)
        return 99;
    channels = nvs_channels_new (&lib, GENERATION, 1);
    if (channels == NULL)
        return 99;
    test_calls (NVS_CHANNEL_LANE);
    test_calls (NVS_CHANNEL_PIPE);
    test_lifetimes ();
    test_bad_lanes ();
    test_bad_pipes ();
    test_large ();
    test_threads ();
    test_nothing_left ();
    test_idle ();
    test_drain ();
    nvs_channels_free (channels);
    return tap_done ();
}
