/* SPDX-License-Identifier: Apache-2.0 */
/* The caller's end of a channel, as simple as can be, for tests. */
#ifndef NVSANDBOX_TESTS_CALLER_H
#define NVSANDBOX_TESTS_CALLER_H

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "../../../csrc/worker/channels.h"
#include "build_frame.h"

struct caller {
    struct nvs_lane *lane; /* or */
    int fd;                /* a pipe */
    uint32_t number;
    unsigned spin; /* looks before it sleeps */
    unsigned char frame[NVS_LANE_FRAME];
    struct nvs_reply reply;
    const unsigned char *data;
    const char *strings;
};

static inline void
caller_wake (_Atomic uint32_t *word)
{
    (void)syscall (SYS_futex, word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

/* A descriptor for the worker. */
static inline int
caller_make_lane (struct caller *caller)
{
    int fd = memfd_create ("lane", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    void *memory;

    if (fd < 0 || ftruncate (fd, NVS_LANE_SIZE) < 0 || fcntl (fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) < 0)
        abort ();
    memory = mmap (NULL, NVS_LANE_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (memory == MAP_FAILED)
        abort ();
    caller->lane = memory;
    caller->fd = -1;
    caller->number = 0;
    return fd;
}

static inline int
caller_make_pipe (struct caller *caller)
{
    int pair[2];

    if (socketpair (AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) < 0)
        abort ();
    caller->lane = NULL;
    caller->fd = pair[0];
    return pair[1];
}

static inline void
caller_close (struct caller *caller)
{
    if (caller->lane != NULL) {
        atomic_store (&caller->lane->closed, 1);
        (void)atomic_fetch_add (&caller->lane->request, 1);
        caller_wake (&caller->lane->request);
        (void)munmap (caller->lane, NVS_LANE_SIZE);
        caller->lane = NULL;
    } else if (caller->fd >= 0)
        (void)close (caller->fd);
    caller->fd = -1;
}

static inline bool
caller_receive (int fd, void *to, size_t size)
{
    return recv (fd, to, size, MSG_WAITALL) == (ssize_t)size;
}

/* Sends the bytes in caller->frame. False when the other end is gone. */
static inline bool
caller_send (struct caller *caller, uint32_t length)
{
    struct nvs_lane *lane = caller->lane;

    if (lane == NULL)
        return send (caller->fd, &length, sizeof length, MSG_NOSIGNAL) == sizeof length
               && send (caller->fd, caller->frame, length, MSG_NOSIGNAL) == (ssize_t)length;
    memcpy ((unsigned char *)lane + NVS_LANE_DATA, caller->frame, length <= NVS_LANE_FRAME ? length : 0);
    atomic_store_explicit (&lane->request_length, length, memory_order_relaxed);
    atomic_store (&lane->request, ++caller->number);
    if (atomic_load (&lane->worker_sleeps) != 0)
        caller_wake (&lane->request);
    return true;
}

static inline bool
caller_wait (struct caller *caller)
{
    struct nvs_lane *lane = caller->lane;
    uint32_t length;
    uint32_t seen;

    if (lane == NULL) {
        if (!caller_receive (caller->fd, &length, sizeof length) || length > sizeof caller->frame
            || !caller_receive (caller->fd, caller->frame, length))
            return false;
    } else {
        for (unsigned i = 0; i < caller->spin; i++)
            if (atomic_load_explicit (&lane->reply, memory_order_acquire) == caller->number)
                break;
        while ((seen = atomic_load (&lane->reply)) != caller->number) {
            atomic_store (&lane->caller_sleeps, 1);
            if (atomic_load (&lane->reply) == seen)
                (void)syscall (SYS_futex, &lane->reply, FUTEX_WAIT, seen, NULL, NULL, 0);
            atomic_store (&lane->caller_sleeps, 0);
        }
        length = atomic_load_explicit (&lane->reply_length, memory_order_relaxed);
        if (length > NVS_LANE_FRAME)
            return false;
        memcpy (caller->frame, (const unsigned char *)lane + NVS_LANE_DATA, length);
    }
    memcpy (&caller->reply, caller->frame, sizeof caller->reply);
    caller->data = caller->frame + sizeof caller->reply;
    caller->strings = (const char *)caller->data + caller->reply.data_len;
    return length == sizeof caller->reply + caller->reply.data_len + caller->reply.strings_len;
}

static inline bool
caller_ask (struct caller *caller, const struct building *b)
{
    return caller_send (caller, build_write (b, caller->frame)) && caller_wait (caller);
}

/* 0 if there is none. */
static inline uint32_t
caller_resolve (struct caller *caller, const char *name)
{
    static _Thread_local struct building b;

    build_resolve (&b, name);
    return caller_ask (caller, &b) && caller->reply.status == NVS_STATUS_OK ? (uint32_t)caller->reply.result : 0;
}

static inline uint64_t
caller_u64 (const struct caller *caller, size_t offset)
{
    uint64_t value;

    memcpy (&value, caller->data + offset, sizeof value);
    return value;
}

#endif
