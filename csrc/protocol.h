/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The protocol between the two halves: the caller's process (csrc/core, nvsandbox/) and the worker
 * (csrc/worker). Both are built from this file, and the start message carries PROTOCOL_VERSION and the
 * package's version, so that halves of different builds refuse each other instead of guessing.
 *
 * There are two kinds of connection:
 *
 *   control   one AF_UNIX SOCK_SEQPACKET pair for each worker, descriptor NVS_CONTROL_FD in it.
 *             Every message is one packet and starts with struct nvs_message. The order is fixed:
 *
 *                 caller                           worker
 *                 START       ------------------>  isolates and locks itself down (or FAILED, exit)
 *                 (verifies)  <------------------  ISOLATED
 *                 GO          ------------------>  loads libnvidia-ml.so.1, initialises it
 *                             <------------------  READY   (or FAILED, exit)
 *                 OPEN + fd   ------------------>  starts a thread that serves this channel
 *                             <------------------  OPENED  (or REFUSED)
 *                 STOP        ------------------>  lets running calls end, nvmlShutdown, exit 0
 *
 *             When the caller's end closes, however that comes about, the worker does what STOP says.
 *             The kernel closes it even for a caller that was killed; PR_SET_PDEATHSIG would follow the thread
 *             that started the worker, which may end long before the caller does.
 *
 *   channel   carries calls: one for each calling thread, served by one worker thread, one call at a time.
 *             Either a lane (NVS_CHANNEL_LANE: a sealed memfd, struct nvs_lane) or a pipe
 *             (NVS_CHANNEL_PIPE: an AF_UNIX SOCK_STREAM pair, frames preceded by their length).
 *             What travels is the same: a request frame (struct nvs_request) and a reply (struct nvs_reply).
 *
 * Trust: neither side trusts the other's bytes. Whoever receives a frame copies it to private memory once, checks
 * every count, offset and size in the copy against the copy's length, and only then uses it. Nothing is
 * read twice from shared memory. Integers are in host order: both halves run on one machine.
 */
#ifndef NVSANDBOX_PROTOCOL_H
#define NVSANDBOX_PROTOCOL_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define NVS_PROTOCOL_VERSION 1u
#define NVS_MAGIC            0x3153564eu /* "NVS1" */
#define NVS_CONTROL_FD       3
#define NVS_MESSAGE_MAX      65536u /* a control packet, header included */

#ifndef NVSANDBOX_VERSION
#error "the build defines NVSANDBOX_VERSION"
#endif

/* ---- errors ------------------------------------------------------------------------------------------- */

/* What the worker (or the spawn) was doing. The order is the order of the start-up; the name of each, as users
 * see it, is in steps.h. */
enum nvs_step {
    NVS_STEP_NONE = 0,
    NVS_STEP_SPAWN,       /* caller: posix_spawn of the worker */
    NVS_STEP_HELLO,       /* START malformed, or of another build */
    NVS_STEP_DESCRIPTORS, /* closing what was inherited */
    NVS_STEP_USER_NS,     /* unshare(CLONE_NEWUSER) */
    NVS_STEP_ID_MAP,      /* uid_map, setgroups, gid_map */
    NVS_STEP_MOUNT_NS,    /* unshare(CLONE_NEWNS) */
    NVS_STEP_PROPAGATION, /* MS_SLAVE | MS_REC on /, and the proof that nothing is shared any more */
    NVS_STEP_DEV_ROOT,    /* opening and listing the dev root */
    NVS_STEP_DEV_TMPFS,   /* tmpfs on /dev */
    NVS_STEP_DEV_BASE,    /* null, zero, ..., pts, shm, links */
    NVS_STEP_DEV_NVIDIA,  /* the NVIDIA nodes */
    NVS_STEP_PARAMS,      /* the copy of /proc/driver/nvidia/params */
    NVS_STEP_CAPS,        /* capability sets, bounding set, securebits */
    NVS_STEP_NO_NEW_PRIVS,
    NVS_STEP_LANDLOCK, /* what may be written to, and no other processes; where the kernel has it */
    NVS_STEP_SECCOMP,
    NVS_STEP_CHECK,       /* the worker's own proof of what it did */
    NVS_STEP_VERIFY,      /* caller: the parent's proof of the same */
    NVS_STEP_LIBRARY,     /* finding, checking and loading libnvidia-ml.so.1 */
    NVS_STEP_INIT,        /* nvmlInit */
    NVS_STEP_CHANNEL,     /* opening a channel */
    NVS_STEP_WORKING_DIR, /* nvsandbox-run: the working directory is in the host's /dev. No other isolation would help */
    NVS_STEP_COUNT
};

#define NVS_PATH_MAX 4096u /* PATH_MAX: no path that the kernel takes is longer */

/* One convention in all of csrc: what can fail returns 0 or -1 and fills this. The size is fixed, so that it needs no
 * allocation and crosses the control connection as it is. Text is NUL-terminated by the writer, and ends
 * with an ellipsis where it was cut; the reader terminates it again. */
struct nvs_error {
    uint32_t step; /* enum nvs_step */
    int32_t err;   /* errno, or 0 where none applies */
    char path[NVS_PATH_MAX];
    char detail[512];
};

/* ---- control ------------------------------------------------------------------------------------------ */

enum nvs_message_type {
    NVS_MSG_START = 1,
    NVS_MSG_ISOLATED,
    NVS_MSG_GO,
    NVS_MSG_READY,
    NVS_MSG_FAILED,
    NVS_MSG_OPEN,
    NVS_MSG_OPENED,
    NVS_MSG_REFUSED,
    NVS_MSG_STOP,
};

struct nvs_message {
    uint32_t magic;
    uint32_t type; /* enum nvs_message_type */
};

enum nvs_isolation {
    NVS_ISOLATION_MOUNT = 1, /* new mount namespace, tmpfs on /dev; needs CAP_SYS_ADMIN */
    NVS_ISOLATION_USER = 2,  /* the same in a new user namespace */
    NVS_ISOLATION_GUARD = 3, /* no namespace: no capabilities, no_new_privs, seccomp refuses mknod */
};

enum nvs_start_flags {
    NVS_START_PRIVILEGED = 1u << 0, /* keep CAP_SYS_ADMIN: NVML's setters ask for it */
    NVS_START_SIMULATED = 1u << 1,  /* the library is the simulator: NVIDIA's usual majors, no driver needed */
    NVS_START_VERBOSE = 1u << 2,    /* keep the caller's stderr for what the library prints; else /dev/null */
    NVS_START_DEVICES = 1u << 3,    /* only the GPUs of the minor list; an empty list then means none */
};

#define NVS_DEVICES_MAX 256u

/* START. Behind the struct lie strings_len bytes: NUL-terminated strings, in this order: driver_root, dev_root
 * (the folder whose NVIDIA nodes the private /dev shows, such as "/dev" or "/run/nvidia/driver/dev"), the simulator's
 * description ("" where it is not used), then libraries_count candidates for libnvidia-ml.so.1, best first. A
 * candidate without a slash is left to the loader's own search. A pipe may come with it, in which a byte is to end
 * the worker by SIGKILL (main.c). */
struct nvs_start {
    struct nvs_message message;
    uint32_t protocol; /* NVS_PROTOCOL_VERSION */
    char build[32];    /* NVSANDBOX_VERSION */
    uint32_t isolation;
    uint32_t flags;
    uint32_t devices_count;
    uint32_t libraries_count;
    uint32_t strings_len;
    uint32_t spinning_max; /* how many of the worker's threads may spin at a time */
    uint32_t device_minors[NVS_DEVICES_MAX];
};

/* ISOLATED and READY, alike so that the report is one thing that grows. */
struct nvs_report {
    struct nvs_message message;
    uint32_t protocol;
    char build[32];
    uint32_t isolation;
    int32_t pid;
    uint64_t mount_ns;     /* st_ino of /proc/self/ns/mnt as the worker sees it, 0 if unreadable */
    uint64_t dev_fs_magic; /* statfs f_type of /dev */
    uint64_t caps_effective;
    uint64_t caps_bounding;
    uint32_t no_new_privs;
    uint32_t seccomp_mode;
    uint32_t nodes;      /* NVIDIA nodes put into the private /dev */
    int32_t init_result; /* READY: what nvmlInit returned, an nvmlReturn_t */
    uint64_t began_ns;   /* CLOCK_MONOTONIC as the worker's main began: what was before is exec and the loader */
    uint64_t step_ns[NVS_STEP_COUNT]; /* how long each step took, 0 where it was not needed */
    char library[NVS_PATH_MAX];       /* READY: the path that was loaded */
};

struct nvs_failed {
    struct nvs_message message;
    struct nvs_error error;
    /* LIBRARY: what became of each candidate: "path: reason\n" each, as much as fits, and then how many more there are. */
    char tried[32768];
};

enum nvs_channel_kind {
    NVS_CHANNEL_LANE = 1,
    NVS_CHANNEL_PIPE = 2,
};

struct nvs_open {
    struct nvs_message message;
    uint32_t kind; /* enum nvs_channel_kind */
    uint32_t id;   /* given back in OPENED or REFUSED */
    uint64_t size; /* LANE: the memfd's size */
    /* one descriptor in SCM_RIGHTS */
};

struct nvs_opened {
    struct nvs_message message;
    uint32_t id;
    uint32_t padding;
    struct nvs_error error; /* REFUSED: why */
};

/* ---- nvsandbox-run ------------------------------------------------------------------------------------ */

/* What `nvsandbox run` tells the program that becomes the user's: this, then start_len bytes that are a START packet
 * (its libraries do not matter here), then environment_len bytes: NUL-terminated strings, the environment of the user's
 * program. nvsandbox-run itself is started with none, so that the loader puts nothing of the user's into it. The plan lies
 * in a sealed memfd, whose descriptor is the first argument; the second is the file to execute, and what follows is its
 * argument vector. */
#define NVS_RUN_MAGIC 0x3152564eu /* "NVR1" */

enum nvs_run_flags {
    NVS_RUN_LOCKDOWN = 1u << 0, /* no capabilities, no_new_privs, a filter */
    NVS_RUN_JSON = 1u << 1,     /* errors as JSON */
    NVS_RUN_DEBUG = 1u << 2,    /* says which isolation it became */
    /* Mounts that the program makes reach the host, and the other way round, but in /dev: at MOUNT alone. */
    NVS_RUN_KEEP_PROPAGATION = 1u << 3,
};

struct nvs_run {
    uint32_t magic;
    uint32_t flags; /* enum nvs_run_flags */
    uint32_t steps; /* 1 << enum nvs_isolation for each step of the ladder that may be tried */
    int32_t report; /* a SOCK_SEQPACKET socket to the parent that reports, or -1 */
    uint32_t start_len;
    uint32_t environment_len;
};

/* To the parent that reports, before the user's program begins, which waits for a packet in answer; another packet, of
 * one byte, follows when the program cannot be executed after all. Two descriptors
 * come with it, but with GUARD: the mount namespace, which they keep alive, and the private /dev. */
struct nvs_run_ready {
    uint32_t magic;
    uint32_t isolation;
};

/* ---- channels ----------------------------------------------------------------------------------------- */

#define NVS_FRAME_MAX  (64u << 20) /* the largest request or reply over a pipe */
#define NVS_LANE_SIZE  (1u << 20)  /* a lane's memfd: sparse, so that only what was used is memory */
#define NVS_LANE_DATA  4096u       /* where the frame starts; what is before it is struct nvs_lane */
#define NVS_LANE_FRAME (NVS_LANE_SIZE - NVS_LANE_DATA)

/* A lane: one request at a time. The caller writes the frame and its length, then adds 1 to `request` (release) and
 * wakes it if `worker_sleeps`. The worker answers in the same place and stores the request's number in
 * `reply` (release), then wakes that if `caller_sleeps`. Both are futex words. `closed` ends the worker's thread.
 * A caller that gives up a lane in mid-call never uses it again, so that no late answer meets a new question.
 *
 * Who looks for the other's word instead of sleeping keeps a CPU busy, which only makes sense while the other has one of its
 * own: so each says where it is. That is a hint, by which nobody waits longer than without.
 *
 * What one side writes in each call has a cache line of its own that the other reads in each call, and what is seldom written has
 * another: a line that both touch costs a transfer between CPUs, a tenth of a microsecond. 128 bytes apart, since
 * CPUs fetch lines in pairs. */
struct nvs_lane {
    _Alignas (128) _Atomic uint32_t request;
    _Atomic uint32_t request_length;
    _Atomic uint32_t closed; /* set together with a change of `request`, so that a sleeper wakes */
    _Alignas (128) _Atomic uint32_t reply;
    _Atomic uint32_t reply_length;
    /* The last request whose function the worker has begun with: a later one did not reach it. */
    _Alignas (128) _Atomic uint32_t taken;
    _Atomic uint32_t worker_cpu;                   /* where that was */
    _Alignas (128) _Atomic uint32_t caller_sleeps; /* 0, or 1 + the CPU on which it went to sleep */
    _Atomic uint32_t worker_sleeps;
    uint32_t no_looking; /* from the start: there is one CPU for both */
};
_Static_assert (sizeof (struct nvs_lane) <= NVS_LANE_DATA, "the lane's header fits before its data");

/* On a pipe every frame, in both directions, is preceded by this many bytes: a uint32_t, the frame's length. */
#define NVS_PIPE_PREFIX 4u

/* ---- frames ------------------------------------------------------------------------------------------- */

#define NVS_ARGS_MAX   6u    /* no function of NVML takes more (nvml.h 13.5, all 435 prototypes) */
#define NVS_NAME_MAX   128u  /* a symbol's name, its NUL included */
#define NVS_RELOCS_MAX 4096u /* relocation runs in one frame */
#define NVS_DATA_ALIGN 16u   /* where data starts in a frame, and each pointee in the data */

enum nvs_op {
    NVS_OP_RESOLVE = 1, /* data: a symbol's name, nvml[A-Za-z0-9_]*, NUL-terminated; result: its index */
    NVS_OP_CALL = 2,
    /* After NVS_STATUS_TOO_LARGE and before the channel's next call. Data: a uint64_t, an offset in the reply that the
     * worker has kept; the reply's data are as much of it from there on as fits the channel. */
    NVS_OP_FETCH = 3,
};

enum nvs_call_flags {
    NVS_CALL_RETURNS_STRING = 1u << 0, /* the function returns const char *, not nvmlReturn_t */
    NVS_CALL_RETIRES = 1u << 1,        /* on NVML_SUCCESS the handles passed in are gone (…Free, …Destroy) */
};

enum nvs_arg_kind {
    NVS_ARG_VALUE = 1,  /* value goes into the register as it is; NULL is value 0 */
    NVS_ARG_DATA = 2,   /* the address of data + value */
    NVS_ARG_HANDLE = 3, /* value is a token (or 0), replaced by what it stands for */
};

struct nvs_arg {
    uint32_t kind;
    uint32_t handle_kind; /* HANDLE: which opaque type, 1..255, numbered by the caller */
    uint64_t value;
};

enum nvs_reloc_kind {
    /* 8 bytes that hold a handle. In: a token or 0. Out: a token for what the library wrote, or 0. */
    NVS_RELOC_HANDLE = 1,
    /* 8 bytes that hold a pointer. In: 0, or 1 + an offset in the data. Out: as it was, whatever the library wrote. */
    NVS_RELOC_POINTER = 2,
    /* 8 bytes that hold a const char *. In: as POINTER. Out: as it was, or, where the library put another
     * pointer there, NVS_STRING_OUT + an offset in the reply's strings; 0 for NULL. */
    NVS_RELOC_STRING = 3,
};
#define NVS_STRING_OUT (1ull << 63)
#define NVS_STRING_MAX 4096u /* a string of the library's own is copied up to here, NUL included */

/* `count` places of one kind, the first at `offset` in the data, each `stride` after the one before. */
struct nvs_reloc {
    uint32_t kind;
    uint32_t handle_kind;
    uint32_t offset;
    uint32_t count;
    uint32_t stride;
    uint32_t padding;
};

/* A request: this header, relocs_count relocations, zeros up to a multiple of NVS_DATA_ALIGN (counted from the
 * frame's start), data_len bytes of data. */
struct nvs_request {
    uint32_t op;
    uint32_t function; /* CALL: an index that RESOLVE gave */
    uint32_t flags;
    uint32_t args_count;
    uint32_t relocs_count;
    uint32_t data_len;
    struct nvs_arg args[NVS_ARGS_MAX];
};

enum nvs_status {
    NVS_STATUS_OK = 0,
    NVS_STATUS_BAD_FRAME = 1,    /* the request is not well-formed */
    NVS_STATUS_NO_SYMBOL = 2,    /* RESOLVE: the library lacks it */
    NVS_STATUS_STALE_HANDLE = 3, /* a token of another worker, or of something freed; the function was not called */
    NVS_STATUS_BAD_HANDLE = 4,   /* not a token, or one of another kind; not called */
    NVS_STATUS_NO_MEMORY = 5,
    /* The call was carried out, but its reply does not fit the channel, for its strings: `result` is its length, and
     * FETCH gets it piece by piece. A `result` of 0: it is larger than NVS_FRAME_MAX, and lost. */
    NVS_STATUS_TOO_LARGE = 6,
};

/* A reply: this header (its size is a multiple of NVS_DATA_ALIGN), data_len bytes (for an OK CALL exactly the request's data,
 * as the function left it; else none), then strings_len bytes of NUL-terminated strings: for RETURNS_STRING `result` is 1 + the
 * offset of the string in them, 0 for NULL. `index` tells which argument or relocation run a handle status is about. */
struct nvs_reply {
    uint32_t status;
    uint32_t data_len;
    uint32_t strings_len;
    uint32_t index;
    uint64_t result;
    uint64_t padding;
};
_Static_assert (sizeof (struct nvs_reply) % NVS_DATA_ALIGN == 0, "data is aligned in a reply");

/* ---- handle tokens ------------------------------------------------------------------------------------ */

/* What callers hold instead of NVML's pointers. The tag makes it an address that no process can have on x86-64 or
 * aarch64 (bit 55 is set, and with it the top-byte-ignore of aarch64 does not help either), so that a token that is
 * dereferenced by mistake faults at once and never reads something else.
 *
 *   63..52  NVS_TOKEN_TAG       51..32  generation: 20 random bits for each worker
 *   31..24  kind                23..0   slot in the worker's table
 *
 * The slot's own count of uses is added to the generation (modulo 2^20), so that a freed handle's token does not come
 * to life when its slot is used again. */
#define NVS_TOKEN_TAG 0xa5full
/* The kind of what a caller has in a void pointer, without saying which handle it is: goes with every other kind. */
#define NVS_HANDLE_UNTYPED  255u
#define NVS_TOKEN_SLOTS_MAX (1u << 20)

static inline bool
nvs_token_is (uint64_t value)
{
    return value >> 52 == NVS_TOKEN_TAG;
}

static inline uint32_t
nvs_token_kind (uint64_t token)
{
    return (uint32_t)(token >> 24 & 0xffu);
}

static inline uint64_t
nvs_token_make (uint32_t generation, uint32_t kind, uint32_t slot)
{
    return NVS_TOKEN_TAG << 52 | (uint64_t)(generation & 0xfffffu) << 32 | (uint64_t)(kind & 0xffu) << 24
           | (slot & 0xffffffu);
}

#endif
