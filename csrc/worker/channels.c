/* SPDX-License-Identifier: Apache-2.0 */
#include "channels.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include "../clock.h"
#include "../error.h"
#include "serve.h"

#define CHANNELS_MAX 4096u
#define LANE_MAX     (NVS_FRAME_MAX + NVS_LANE_DATA)
/* NVML decides how much stack a call takes, and nothing says how little is enough: this is an eighth of what an
 * ordinary thread has, and only address space until it is touched. With the usual 8 MiB, 4096 channels would reserve
 * 32 GiB, which strict overcommit and RLIMIT_AS refuse. */
#define STACK_SIZE (1u << 20)
/* How long a worker thread looks out for the next call before it sleeps. A program that asks for one value after the
 * other is back within a few microseconds, and one that makes objects of a hundred processes in Python after a hundred of
 * them; a sleep and a wake-up cost tens. */
#define SPIN_NS       200000
#define WAKE_NS       80000 /* what a sleep and a wake-up may take on a virtual machine: not the caller's doing */
#define SPIN_LEAST    2000
#define DRAIN_LOOK_NS 500000
/* Between two moves of a thread to another CPU, at first and at most. */
#define MOVE_REST     10000000
#define MOVE_REST_MAX 1000000000

struct channel {
    struct nvs_channels *owner;
    struct channel *next;
    struct channel *previous;
    uint32_t kind;
    int fd; /* PIPE; a lane's is closed as soon as it is mapped */
    struct nvs_lane *lane;
    size_t size;
    int64_t spin_ns;   /* this lane's present patience */
    bool looks;        /* whether this lane's thread ever waits by looking */
    bool shares;       /* the caller that was woken last waits for this CPU */
    int64_t moved;     /* when this thread last left a CPU to its caller, */
    int64_t move_rest; /* and how long it then stays */
    _Atomic bool busy; /* between taking a request and having answered it */
    struct nvs_buffers buffers;
};

struct nvs_channels {
    struct nvs_serve *serve;
    pthread_mutex_t lock; /* the list */
    struct channel *first;
    uint32_t count;
    _Atomic bool stopping;
    _Atomic uint32_t spinning; /* threads that spin now, and how many may: */
    uint32_t spinning_max;     /* the caller counts the CPUs, with the quotas of its cgroups (csrc/core/cpus.c) */
};

/* ---- helpers ------------------------------------------------------------------------------------------ */

/* Not the private variants: the other end is another process. A wait may end for no reason, and whoever waits looks
 * again. */
static void
futex_wait (_Atomic uint32_t *word, uint32_t expected)
{
    (void)syscall (SYS_futex, word, FUTEX_WAIT, expected, NULL, NULL, 0);
}

static void
futex_wake (_Atomic uint32_t *word)
{
    (void)syscall (SYS_futex, word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

/* Takes a request on, unless the worker is about to end. nvs_channels_drain () writes `stopping` and then reads `busy`;
 * we write `busy` and then read `stopping`. In sequentially consistent order one of the two sees the other. */
static bool
begin (struct channel *channel)
{
    atomic_store (&channel->busy, true);
    return !atomic_load (&channel->owner->stopping);
}

static void
end (struct channel *channel)
{
    atomic_store_explicit (&channel->busy, false, memory_order_release);
}

/* ---- lanes -------------------------------------------------------------------------------------------- */

static bool
lane_over (struct channel *channel)
{
    return atomic_load_explicit (&channel->lane->closed, memory_order_acquire) != 0
           || atomic_load (&channel->owner->stopping);
}

/* Whether there is something to see within the lane's patience. */
static bool
lane_spin (struct channel *channel, uint32_t seen, int64_t start)
{
    struct nvs_channels *owner = channel->owner;
    struct nvs_lane *lane = channel->lane;
    bool found = false;

    if (channel->spin_ns == 0 || channel->shares)
        return false;
    if (atomic_fetch_add_explicit (&owner->spinning, 1, memory_order_relaxed) < owner->spinning_max)
        do
            for (int i = 0; i < 16 && !found; i++) {
                nvs_relax ();
                found = atomic_load_explicit (&lane->request, memory_order_acquire) != seen;
            }
        while (!found && nvs_now_ns () - start < channel->spin_ns);
    (void)atomic_fetch_sub_explicit (&owner->spinning, 1, memory_order_relaxed);
    return found;
}

/* The number of the next request; false at the end. `seen` is the one before. */
static bool
lane_wait (struct channel *channel, uint32_t seen, uint32_t *number)
{
    struct nvs_lane *lane = channel->lane;
    const int64_t start = nvs_now_ns ();

    if (lane_spin (channel, seen, start))
        channel->spin_ns = SPIN_NS;
    else {
        /* The caller adds to `request` and then reads `worker_sleeps`; we write that and then read `request`. All
         * four in sequentially consistent order, so one of the two sees the other, and the kernel compares `request`
         * once more as it puts us to sleep. No timeout: an idle lane costs nothing. */
        atomic_store (&lane->worker_sleeps, 1);
        while (atomic_load (&lane->request) == seen && !lane_over (channel))
            futex_wait (&lane->request, seen);
        atomic_store_explicit (&lane->worker_sleeps, 0, memory_order_relaxed);
        /* Would a little more patience have been rewarded? Then have it; else have less. */
        if (nvs_now_ns () - start < SPIN_NS + WAKE_NS)
            channel->spin_ns = channel->looks ? SPIN_NS : 0;
        else if (channel->spin_ns > 0)
            channel->spin_ns = channel->spin_ns / 2 >= SPIN_LEAST ? channel->spin_ns / 2 : 0;
    }
    *number = atomic_load_explicit (&lane->request, memory_order_acquire);
    return !lane_over (channel);
}

/* Off this CPU, on which the caller went to sleep and will want to go on. Where no two CPUs share a cache, as the virtual ones of some
 * machines, the scheduler wakes a thread where it was or where its waker is, and leaves two that wake each other on one CPU for many
 * milliseconds, while another is idle. The mask of CPUs is only borrowed: a thread of the library's choice of CPUs stays.
 * Rarely, and each time more rarely: if it does not last, there is no other CPU to be had. */
static void
leave_cpu (struct channel *channel, uint32_t cpu)
{
    const int64_t now = nvs_now_ns ();
    cpu_set_t before;
    cpu_set_t rest;

    if (channel->owner->spinning_max == 0 || now - channel->moved < channel->move_rest)
        return;
    channel->move_rest = now - channel->moved > 2 * MOVE_REST_MAX ? MOVE_REST
                         : channel->move_rest < MOVE_REST_MAX / 2 ? 2 * channel->move_rest
                                                                  : MOVE_REST_MAX;
    channel->moved = now;
    if (sched_getaffinity (0, sizeof before, &before) < 0) /* EINVAL: more than 1024 CPUs */
        return;
    rest = before;
    CPU_CLR (cpu, &rest);
    if (CPU_COUNT (&rest) > 0 && sched_setaffinity (0, sizeof rest, &rest) == 0)
        (void)sched_setaffinity (0, sizeof before, &before);
}

/* Tells the caller that its request is being carried out, and where. */
static void
lane_take (struct channel *channel, uint32_t number)
{
    struct nvs_lane *lane = channel->lane;
    uint32_t cpu = (uint32_t)sched_getcpu ();

    if (atomic_load_explicit (&lane->caller_sleeps, memory_order_relaxed) == cpu + 1) {
        leave_cpu (channel, cpu);
        cpu = (uint32_t)sched_getcpu ();
    }
    atomic_store_explicit (&lane->worker_cpu, cpu, memory_order_relaxed);
    atomic_store_explicit (&lane->taken, number, memory_order_release);
}

static void
lane_answer (struct channel *channel, uint32_t number, const struct nvs_answer *answer)
{
    const struct nvs_reply *reply = &answer->reply;
    struct nvs_lane *lane = channel->lane;
    unsigned char *to = (unsigned char *)lane + NVS_LANE_DATA;
    uint32_t sleeper;

    memcpy (to, reply, sizeof *reply);
    if (reply->data_len > 0)
        memcpy (to + sizeof *reply, answer->data, reply->data_len);
    if (reply->strings_len > 0)
        memcpy (to + sizeof *reply + reply->data_len, answer->strings, reply->strings_len);
    atomic_store_explicit (&lane->reply_length, (uint32_t)sizeof *reply + reply->data_len + reply->strings_len,
                           memory_order_relaxed);
    atomic_store (&lane->reply, number); /* in order with the next line, as in lane_wait */
    sleeper = atomic_load (&lane->caller_sleeps);
    if (sleeper != 0)
        futex_wake (&lane->reply);
    channel->shares = sleeper != 0 && sleeper == (uint32_t)sched_getcpu () + 1;
}

/* The caller can write to the lane whenever it likes. Each word of it is read once, and the frame is copied before
 * anybody looks at it. */
static void
lane_serve (struct channel *channel)
{
    const uint32_t capacity = (uint32_t)(channel->size - NVS_LANE_DATA);
    struct nvs_buffers *buffers = &channel->buffers;
    struct nvs_lane *lane = channel->lane;
    struct nvs_answer answer;
    uint32_t number = 0;
    uint32_t length;

    while (lane_wait (channel, number, &number) && begin (channel)) {
        memset (&answer, 0, sizeof answer);
        lane_take (channel, number);
        length = atomic_load_explicit (&lane->request_length, memory_order_relaxed);
        if (length > capacity)
            answer.reply.status = NVS_STATUS_BAD_FRAME;
        else if (nvs_buffers_frame (buffers, length) == NULL)
            answer.reply.status = NVS_STATUS_NO_MEMORY;
        else {
            memcpy (buffers->frame, (const unsigned char *)lane + NVS_LANE_DATA, length);
            /* The compiler is not to replace the copy by what it was copied from. */
            atomic_signal_fence (memory_order_seq_cst);
            nvs_serve_frame (channel->owner->serve, buffers, length, capacity, &answer);
        }
        lane_answer (channel, number, &answer);
        end (channel);
        nvs_buffers_trim (buffers);
    }
}

/* ---- pipes -------------------------------------------------------------------------------------------- */

/* All of it, or false: at the end of the stream, or on an error. */
static bool
receive (int fd, void *to, size_t size)
{
    size_t done = 0;

    while (done < size) {
        ssize_t n = recv (fd, (char *)to + done, size - done, MSG_WAITALL);

        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return false;
        done += (size_t)n;
    }
    return true;
}

static bool
discard (int fd, size_t size)
{
    char scratch[4096];

    while (size > 0) {
        size_t part = size < sizeof scratch ? size : sizeof scratch;

        if (!receive (fd, scratch, part))
            return false;
        size -= part;
    }
    return true;
}

static bool
pipe_answer (int fd, const struct nvs_answer *answer)
{
    const struct nvs_reply *reply = &answer->reply;
    uint32_t length = (uint32_t)sizeof *reply + reply->data_len + reply->strings_len;
    /* The cast takes const away for sendmsg, which only reads. */
    struct iovec parts[] = {
        { &length, sizeof length },
        { (void *)(uintptr_t)reply, sizeof *reply },
        { (void *)(uintptr_t)answer->data, reply->data_len },
        { (void *)(uintptr_t)answer->strings, reply->strings_len },
    };
    struct msghdr message = { .msg_iov = parts, .msg_iovlen = sizeof parts / sizeof parts[0] };

    _Static_assert (sizeof length == NVS_PIPE_PREFIX, "the prefix is as protocol.h says");
    while (message.msg_iovlen > 0) {
        ssize_t n = sendmsg (fd, &message, MSG_NOSIGNAL);

        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return false;
        while (message.msg_iovlen > 0 && (size_t)n >= message.msg_iov->iov_len) {
            n -= (ssize_t)message.msg_iov->iov_len;
            message.msg_iov++;
            message.msg_iovlen--;
        }
        if (message.msg_iovlen > 0) {
            message.msg_iov->iov_base = (char *)message.msg_iov->iov_base + n;
            message.msg_iov->iov_len -= (size_t)n;
        }
    }
    return true;
}

static void
pipe_serve (struct channel *channel)
{
    struct nvs_buffers *buffers = &channel->buffers;
    struct nvs_answer answer;
    bool sent = true;
    uint32_t length;

    /* After a length that cannot be, nobody knows where the next frame starts: that ends the channel. */
    while (sent && receive (channel->fd, &length, sizeof length) && length <= NVS_FRAME_MAX) {
        memset (&answer, 0, sizeof answer);
        if (nvs_buffers_frame (buffers, length) == NULL) {
            if (!discard (channel->fd, length))
                return;
            answer.reply.status = NVS_STATUS_NO_MEMORY;
        } else if (!receive (channel->fd, buffers->frame, length))
            return;
        if (!begin (channel))
            return;
        if (answer.reply.status == NVS_STATUS_OK)
            nvs_serve_frame (channel->owner->serve, buffers, length, NVS_FRAME_MAX, &answer);
        sent = pipe_answer (channel->fd, &answer);
        end (channel);
        nvs_buffers_trim (buffers);
    }
}

/* ---- life and death ----------------------------------------------------------------------------------- */

static void
release (struct channel *channel)
{
    if (channel->lane != NULL)
        (void)munmap (channel->lane, channel->size);
    if (channel->fd >= 0)
        (void)close (channel->fd);
    nvs_buffers_free (&channel->buffers);
    free (channel);
}

static void
release_at (struct channel **channel)
{
    if (*channel != NULL)
        release (*channel);
}

/* A channel that has ended leaves nothing: callers' threads come and go for months. */
static void *
thread_main (void *argument)
{
    struct channel *channel = argument;
    struct nvs_channels *owner = channel->owner;

    if (channel->kind == NVS_CHANNEL_LANE)
        lane_serve (channel);
    else
        pipe_serve (channel);

    (void)pthread_mutex_lock (&owner->lock);
    if (channel->previous != NULL)
        channel->previous->next = channel->next;
    else
        owner->first = channel->next;
    if (channel->next != NULL)
        channel->next->previous = channel->previous;
    release (channel); /* under the lock, for drain () looks at `busy` and `fd` */
    owner->count--;
    (void)pthread_mutex_unlock (&owner->lock);
    return NULL;
}

struct nvs_channels *
nvs_channels_new (struct nvs_library *lib, uint32_t generation, uint32_t spinning_max)
{
    struct nvs_channels *channels = calloc (1, sizeof *channels);

    if (channels == NULL)
        return NULL;
    channels->serve = nvs_serve_new (lib, generation);
    if (channels->serve == NULL || pthread_mutex_init (&channels->lock, NULL) != 0) {
        nvs_serve_free (channels->serve);
        free (channels);
        return NULL;
    }
    channels->spinning_max = spinning_max;
    return channels;
}

static int
open_lane (struct channel *channel, uint64_t size, struct nvs_error *error)
{
    struct stat st;
    void *memory;
    int seals;

    if (size <= NVS_LANE_DATA + sizeof (struct nvs_request) || size > LANE_MAX)
        return nvs_fail (error, NVS_STEP_CHANNEL, EINVAL, NULL,
                         "a lane of %llu bytes: it must be larger than %u and at most %u", (unsigned long long)size,
                         NVS_LANE_DATA + (uint32_t)sizeof (struct nvs_request), LANE_MAX);
    if (fstat (channel->fd, &st) < 0)
        return nvs_fail (error, NVS_STEP_CHANNEL, errno, NULL, "fstat of the lane");
    if (st.st_size < 0 || (uint64_t)st.st_size != size)
        return nvs_fail (error, NVS_STEP_CHANNEL, EINVAL, NULL, "the lane's memory has %lld bytes, not %llu",
                         (long long)st.st_size, (unsigned long long)size);
    /* Whoever can shrink the file under a mapping can kill us with SIGBUS in the middle of a call. */
    seals = fcntl (channel->fd, F_GET_SEALS);
    if (seals < 0)
        return nvs_fail (error, NVS_STEP_CHANNEL, errno, NULL, "a lane must be a memfd that can be sealed");
    if ((seals & F_SEAL_SHRINK) == 0)
        return nvs_fail (error, NVS_STEP_CHANNEL, EPERM, NULL,
                         "the lane's memory is not sealed against shrinking (F_SEAL_SHRINK)");
    memory = mmap (NULL, (size_t)size, PROT_READ | PROT_WRITE, MAP_SHARED, channel->fd, 0);
    if (memory == MAP_FAILED)
        return nvs_fail (error, NVS_STEP_CHANNEL, errno, NULL, "mapping a lane of %llu bytes",
                         (unsigned long long)size);
    channel->lane = memory;
    channel->size = (size_t)size;
    channel->looks = channel->owner->spinning_max > 0 && channel->lane->no_looking == 0;
    channel->spin_ns = channel->looks ? SPIN_NS : 0;
    (void)close (channel->fd); /* the mapping is enough, and descriptors are few */
    channel->fd = -1;
    return 0;
}

static int
open_pipe (struct channel *channel, struct nvs_error *error)
{
    int domain = 0;
    int type = 0;
    socklen_t domain_size = sizeof domain;
    socklen_t type_size = sizeof type;
    int flags;

    if (getsockopt (channel->fd, SOL_SOCKET, SO_DOMAIN, &domain, &domain_size) < 0
        || getsockopt (channel->fd, SOL_SOCKET, SO_TYPE, &type, &type_size) < 0)
        return nvs_fail (error, NVS_STEP_CHANNEL, errno, NULL, "a pipe must be a socket");
    if (domain != AF_UNIX || type != SOCK_STREAM)
        return nvs_fail (error, NVS_STEP_CHANNEL, EINVAL, NULL, "a pipe must be an AF_UNIX stream socket");
    /* socketpair (SOCK_NONBLOCK) makes both ends so, and ours has a thread to wait in. */
    flags = fcntl (channel->fd, F_GETFL);
    if (flags < 0 || ((flags & O_NONBLOCK) != 0 && fcntl (channel->fd, F_SETFL, flags & ~O_NONBLOCK) < 0))
        return nvs_fail (error, NVS_STEP_CHANNEL, errno, NULL, "making the pipe blocking");
    return 0;
}

static int
start_thread (struct channel *channel)
{
    pthread_attr_t attributes;
    sigset_t all;
    sigset_t before;
    pthread_t thread;
    int err;

    err = pthread_attr_init (&attributes);
    if (err != 0)
        return err;
    (void)pthread_attr_setstacksize (&attributes, STACK_SIZE);
    (void)pthread_attr_setdetachstate (&attributes, PTHREAD_CREATE_DETACHED);
    /* Signals are the main thread's affair; here they would interrupt calls inside NVML. What a fault raises kills
     * the process all the same, blocked or not. */
    (void)sigfillset (&all);
    (void)pthread_sigmask (SIG_SETMASK, &all, &before);
    err = pthread_create (&thread, &attributes, thread_main, channel);
    (void)pthread_sigmask (SIG_SETMASK, &before, NULL);
    (void)pthread_attr_destroy (&attributes);
    return err;
}

/* A lane is closed by writing `closed`, adding to `request` and waking it. Of a caller that leaves the second step out,
 * the wake-up can come just before the sleep and be lost; so look again, now and then. Under the lock. */
static void
wake_closed (struct nvs_channels *channels)
{
    for (struct channel *c = channels->first; c != NULL; c = c->next)
        if (c->lane != NULL && atomic_load_explicit (&c->lane->closed, memory_order_relaxed) != 0)
            futex_wake (&c->lane->request);
}

int
nvs_channels_open (struct nvs_channels *channels, uint32_t kind, int fd, uint64_t size, struct nvs_error *error)
{
    __attribute__ ((cleanup (release_at))) struct channel *channel = calloc (1, sizeof *channel);
    int err;

    if (channel == NULL) {
        (void)close (fd);
        return nvs_fail (error, NVS_STEP_CHANNEL, ENOMEM, NULL, "no memory for a channel");
    }
    channel->owner = channels;
    channel->kind = kind;
    channel->fd = fd;
    if (kind != NVS_CHANNEL_LANE && kind != NVS_CHANNEL_PIPE)
        return nvs_fail (error, NVS_STEP_CHANNEL, EINVAL, NULL, "no such kind of channel: %u", kind);
    if ((kind == NVS_CHANNEL_LANE ? open_lane (channel, size, error) : open_pipe (channel, error)) < 0)
        return -1;

    /* The thread takes itself off the list, so it must be on it before it runs. */
    (void)pthread_mutex_lock (&channels->lock);
    wake_closed (channels);
    if (atomic_load (&channels->stopping))
        err = ESHUTDOWN;
    else if (channels->count >= CHANNELS_MAX)
        err = EMFILE;
    else
        err = start_thread (channel);
    if (err == 0) {
        channel->next = channels->first;
        if (channels->first != NULL)
            channels->first->previous = channel;
        channels->first = channel;
        channels->count++;
        channel = NULL;
    }
    (void)pthread_mutex_unlock (&channels->lock);
    if (err == ESHUTDOWN)
        return nvs_fail (error, NVS_STEP_CHANNEL, err, NULL, "the worker is ending");
    if (err == EMFILE)
        return nvs_fail (error, NVS_STEP_CHANNEL, err, NULL, "%u channels are open, more are not served", CHANNELS_MAX);
    if (err != 0)
        return nvs_fail (error, NVS_STEP_CHANNEL, err, NULL,
                         "no thread for this channel: see RLIMIT_NPROC and the pids cgroup's limit");
    return 0;
}

void
nvs_channels_drain (struct nvs_channels *channels, uint32_t limit_ms)
{
    const struct timespec look = { 0, DRAIN_LOOK_NS };
    const int64_t until = nvs_now_ns () + (int64_t)limit_ms * 1000000;
    bool busy;

    atomic_store (&channels->stopping, true);
    /* Those that sleep need not: they end, as far as they hear of it. */
    (void)pthread_mutex_lock (&channels->lock);
    for (struct channel *c = channels->first; c != NULL; c = c->next)
        if (c->lane != NULL)
            futex_wake (&c->lane->request);
        else
            (void)shutdown (c->fd, SHUT_RD);
    (void)pthread_mutex_unlock (&channels->lock);

    for (;;) {
        busy = false;
        (void)pthread_mutex_lock (&channels->lock);
        for (struct channel *c = channels->first; c != NULL && !busy; c = c->next)
            busy = atomic_load (&c->busy);
        (void)pthread_mutex_unlock (&channels->lock);
        if (!busy || nvs_now_ns () >= until)
            return;
        (void)nanosleep (&look, NULL);
    }
}

uint32_t
nvs_channels_count (struct nvs_channels *channels)
{
    uint32_t count;

    (void)pthread_mutex_lock (&channels->lock);
    count = channels->count;
    (void)pthread_mutex_unlock (&channels->lock);
    return count;
}

void
nvs_channels_free (struct nvs_channels *channels)
{
    if (channels == NULL)
        return;
    (void)pthread_mutex_destroy (&channels->lock);
    nvs_serve_free (channels->serve);
    free (channels);
}
