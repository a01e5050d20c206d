/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The caller's half in C: what must not be Python. Starting the worker without fork, and the shared memory lane.
 * We are guests in the caller's process: nothing here exits, aborts or prints, and no function keeps state outside of
 * the struct that it is given, but for a count of forks.
 */
#ifndef NVSANDBOX_CORE_H
#define NVSANDBOX_CORE_H

#include <stddef.h>
#include <stdint.h>

#include "error.h"
#include "protocol.h"
#include "steps.h"

/* spawn.c */

/* Starts `path` with the environment `envp` and `control` as its NVS_CONTROL_FD; its process id in *pid. */
int nvs_spawn (const char *path, char *const *envp, int control, int32_t *pid, struct nvs_error *error);

/* lane.c, wait.c */

struct nvs_caller_lane;

enum nvs_wait {
    NVS_WAIT_DONE = 0,    /* the reply was copied out */
    NVS_WAIT_PENDING = 1, /* no reply yet: wait again, or give the lane up */
    NVS_WAIT_BROKEN = -1, /* the worker wrote what no worker writes: give the lane up */
};

/* A new lane, NULL on failure. Without `looks` neither side ever waits by looking. *fd is the memfd to send to the worker; it belongs to
 * the lane. */
struct nvs_caller_lane *nvs_lane_new (int looks, int32_t *fd, struct nvs_error *error);

/* Closes the lane's descriptor, which the worker has by now; the mapping stays. */
void nvs_lane_sent (struct nvs_caller_lane *lane);

/* Puts a request on the lane, which must be idle. -1 if it is too long, or the lane closed. */
int nvs_lane_submit (struct nvs_caller_lane *lane, const void *frame, size_t length);

/* Waits for the reply of what was submitted, at most `wait_ns` and no longer than until a signal arrives. */
int nvs_lane_wait (struct nvs_caller_lane *lane, int64_t wait_ns, void *reply, size_t capacity, uint32_t *length);

/* The end of a worker, as those who wait for it look out for. */
struct nvs_end {
    int32_t pidfd;    /* -1: nobody knows here, so that each wait is short */
    int32_t stopping; /* not 0: it is being ended */
};

/* The same for a reply that takes its time: without a look at first, and with one now and then whether the worker has come
 * to its end, or near it, when the wait is over as well. */
int nvs_lane_wait_on (struct nvs_caller_lane *lane, const struct nvs_end *end, int64_t wait_ns, void *reply,
                      size_t capacity, uint32_t *length);

/* A lane is used by one call at a time: nvs_lane_enter gives 1 to whoever may use it, until nvs_lane_leave; 0 if it is in
 * use, by its thread's own call that a signal handler has interrupted, or by the end of its worker. */
int nvs_lane_enter (struct nvs_caller_lane *lane);
void nvs_lane_leave (struct nvs_caller_lane *lane);

/* Whether the reply to the last request is there. */
int nvs_lane_answered (const struct nvs_caller_lane *lane);

/* Whether somebody has entered. */
int nvs_lane_busy (const struct nvs_caller_lane *lane);

/* Whether the worker has begun with the last request. If it is gone and has not, that one was not carried out. */
int nvs_lane_taken (const struct nvs_caller_lane *lane);

/* The parts of a call, for whoever writes the request in place (NVS_LANE_FRAME bytes at nvs_lane_frame): send it, look for the
 * reply for a while, sleep until it is there or a signal comes (both 1 if it is), and how long it says that it is, which is at most
 * NVS_LANE_FRAME. */
unsigned char *nvs_lane_frame (struct nvs_caller_lane *lane);
void nvs_lane_send (struct nvs_caller_lane *lane, uint32_t length);
int nvs_lane_spin (struct nvs_caller_lane *lane, int64_t spin_ns);
int nvs_lane_spins (const struct nvs_caller_lane *lane); /* whether that would look for longer than once */
int nvs_lane_sleep (struct nvs_caller_lane *lane, int64_t wait_ns);
uint32_t nvs_lane_reply_length (const struct nvs_caller_lane *lane);

/* How long a function usually takes to answer, as far as waiting goes. All zero at first. */
struct nvs_pace {
    int64_t usual_ns;
    uint32_t hold;    /* so many calls do not look */
    uint32_t penalty; /* so many it was after the last look that was of no use */
};

/* How many calls of a session wait now, and with how many at most looking makes sense. */
struct nvs_crowd {
    _Atomic int waiting;
    int looking_max;
};

/* How a lane's caller has waited, after the first few microseconds. */
struct nvs_waits {
    uint64_t sleeps;
    uint64_t looks;
    uint64_t futile;   /* of them: no reply in that time */
    uint64_t hopeless; /* of them: ended at once, for the worker had no CPU, or too many calls waited */
};

/* Waits for the reply, looking and sleeping, at most `wait_ns` and no longer than until a signal arrives: 1 if it is there.
 * Learns from it how long the function takes; `since` is when the request was sent, by CLOCK_MONOTONIC in nanoseconds. */
int nvs_lane_await (struct nvs_caller_lane *lane, struct nvs_pace *pace, struct nvs_crowd *crowd, int64_t since,
                    int64_t wait_ns);

void nvs_lane_waits (const struct nvs_caller_lane *lane, struct nvs_waits *waits);

/* Both in one: nvs_lane_submit and nvs_lane_wait. */
int nvs_lane_call (struct nvs_caller_lane *lane, const void *frame, size_t length, int64_t wait_ns, void *reply,
                   size_t capacity, uint32_t *reply_length);

/* Whoever is in a lane finds it as if closed where a signal handler has forked, in the child: no answer comes, and none of
 * these functions touches its memory. */

/* Ends the worker's thread for this lane and unmaps it; nobody can enter it any more. Idempotent. For whoever has entered the lane,
 * or knows that nobody has. In a forked child the mapping is not there (MADV_DONTFORK) and the worker is the parent's: pass
 * forked = 1, and nothing shared is touched. */
void nvs_lane_close (struct nvs_caller_lane *lane, int forked);

/* Whether there is a lane at this address: for an address that came as a number. */
int nvs_lane_is_one (uintptr_t address);

/* Closes and frees. */
void nvs_lane_free (struct nvs_caller_lane *lane, int forked);

/* owned.c */

/* A descriptor of ours: its number, and what it refers to. Whoever has the struct may close it, and nobody else. */
struct nvs_owned {
    int32_t fd;  /* -1: there is none */
    int32_t pid; /* of a pidfd where these do not have inodes of their own, else 0 */
    uint64_t device;
    uint64_t inode;
};

void nvs_owned_take (struct nvs_owned *owned, int fd);
/* Whether the number still stands for it. */
int nvs_owned_here (const struct nvs_owned *owned);
/* Not what has its number by now. */
void nvs_owned_close (struct nvs_owned *owned);

/* These return 0 or an errno: EBADF where it is not ours any more, ETIMEDOUT. Sockets of AF_UNIX, close-on-exec. */
int nvs_owned_pair (int type, struct nvs_owned *ours, struct nvs_owned *theirs);
/* `passed`: a descriptor to send along, or -1. */
int nvs_owned_send (const struct nvs_owned *owned, const void *bytes, size_t size, int passed, int timeout_ms,
                    size_t *sent);
/* *got 0: the other end is closed. EBADMSG: a packet of no bytes. EMSGSIZE: one of more than `size`. */
int nvs_owned_receive (const struct nvs_owned *owned, void *bytes, size_t size, int timeout_ms, size_t *got);
void nvs_owned_shut (const struct nvs_owned *owned);

/* Waits until one of these can be read, or so long. */
void nvs_await_any (const int32_t *fds, uint32_t count, int timeout_ms);

/* look.c */

/* Both return 0 or an errno. The type of the file system that a path is on, as statfs(2) has it (such as TMPFS_MAGIC),
 * and the effective capabilities of the calling thread as a mask. */
int nvs_look_file_system (const char *path, uint64_t *type);
int nvs_look_capabilities (uint64_t *effective);

/* cpus.c */

/* Half of the CPUs that this thread may use, so that at the other end as many can work: so many may look at once. 0 with one, be it by
 * the affinity or by the quota of a cgroup. */
int nvs_looking_max (void);

/* The quota of CPU time, in whole CPUs, of the groups that `groups` (/proc/self/cgroup) names, in the hierarchies at `root`
 * (/sys/fs/cgroup): INT_MAX for none. */
int nvs_cpu_quota (const char *groups, const char *root);

/* tables.c */

const char *nvs_core_version (void);

/* As histogram.h has them. */
uint32_t nvs_core_latency_slot (uint64_t ns);
uint64_t nvs_core_latency_bound (uint32_t slot);
const char *nvs_core_step_name (uint32_t step);

/* A GPU model of the simulator (sim/profiles.def) and a key of its descriptions (sim/options.def); NULL past the last. */
struct nvs_core_profile {
    const char *key;
    const char *product;
    uint64_t memory_mib;
    int mig;
};
struct nvs_core_option {
    const char *key;
    const char *kind;
    const char *initial;
    const char *help;
};
/* A MIG profile (sim/mig_profiles.def): of which GPU model, how many of the 7 compute slices and 8 memory slices it takes,
 * how many of it there can be, and the mask of the memory slices at which one may start. */
struct nvs_core_mig {
    const char *gpu;
    const char *name;
    uint32_t slices;
    uint32_t memory_slices;
    uint32_t most;
    uint32_t starts;
};
const struct nvs_core_profile *nvs_core_profile (uint32_t index);
const struct nvs_core_option *nvs_core_option (uint32_t index);
const struct nvs_core_mig *nvs_core_mig (uint32_t index);

#endif
