/* What nvsandbox._core shows to Python, in cffi's dialect. The numbers behind "..." are the compiler's. */

#define NVS_PROTOCOL_VERSION ...
#define NVS_MAGIC            ...
#define NVS_CONTROL_FD       ...
#define NVS_MESSAGE_MAX      ...
#define NVS_DEVICES_MAX      ...
#define NVS_FRAME_MAX        ...
#define NVS_LANE_SIZE        ...
#define NVS_LANE_FRAME       ...
#define NVS_ARGS_MAX         ...
#define NVS_NAME_MAX         ...
#define NVS_RELOCS_MAX       ...
#define NVS_DATA_ALIGN       ...
#define NVS_STRING_MAX       ...
#define NVS_LATENCY_SLOTS    ...

#define NVS_MSG_START    ...
#define NVS_MSG_ISOLATED ...
#define NVS_MSG_GO       ...
#define NVS_MSG_READY    ...
#define NVS_MSG_FAILED   ...
#define NVS_MSG_OPEN     ...
#define NVS_MSG_OPENED   ...
#define NVS_MSG_REFUSED  ...
#define NVS_MSG_STOP     ...

#define NVS_ISOLATION_MOUNT ...
#define NVS_ISOLATION_USER  ...
#define NVS_ISOLATION_GUARD ...

#define NVS_START_PRIVILEGED ...
#define NVS_START_SIMULATED  ...
#define NVS_START_VERBOSE    ...
#define NVS_START_DEVICES    ...

#define NVS_RUN_MAGIC            ...
#define NVS_RUN_LOCKDOWN         ...
#define NVS_RUN_JSON             ...
#define NVS_RUN_DEBUG            ...
#define NVS_RUN_KEEP_PROPAGATION ...

#define NVS_CHANNEL_LANE ...
#define NVS_CHANNEL_PIPE ...

#define NVS_OP_RESOLVE          ...
#define NVS_OP_CALL             ...
#define NVS_OP_FETCH            ...
#define NVS_CALL_RETURNS_STRING ...
#define NVS_CALL_RETIRES        ...
#define NVS_ARG_VALUE           ...
#define NVS_ARG_DATA            ...
#define NVS_ARG_HANDLE          ...
#define NVS_RELOC_HANDLE        ...
#define NVS_HANDLE_UNTYPED      ...
#define NVS_TOKEN_TAG           ...
#define NVS_RELOC_POINTER       ...
#define NVS_RELOC_STRING        ...

#define NVS_STATUS_OK           ...
#define NVS_STATUS_BAD_FRAME    ...
#define NVS_STATUS_NO_SYMBOL    ...
#define NVS_STATUS_STALE_HANDLE ...
#define NVS_STATUS_BAD_HANDLE   ...
#define NVS_STATUS_NO_MEMORY    ...
#define NVS_STATUS_TOO_LARGE    ...

#define NVS_WAIT_DONE    ...
#define NVS_WAIT_PENDING ...
#define NVS_WAIT_BROKEN  ...

#define NVS_STEP_SPAWN   ...
#define NVS_STEP_HELLO   ...
#define NVS_STEP_VERIFY  ...
#define NVS_STEP_LIBRARY ...
#define NVS_STEP_INIT    ...
#define NVS_STEP_CHANNEL ...
#define NVS_STEP_COUNT   ...

struct nvs_error {
    uint32_t step;
    int32_t err;
    char path[...];
    char detail[512];
};

struct nvs_message {
    uint32_t magic;
    uint32_t type;
};

struct nvs_run {
    uint32_t magic;
    uint32_t flags;
    uint32_t steps;
    int32_t report;
    uint32_t start_len;
    uint32_t environment_len;
};
struct nvs_run_ready {
    uint32_t magic;
    uint32_t isolation;
};

struct nvs_start {
    struct nvs_message message;
    uint32_t protocol;
    char build[32];
    uint32_t isolation;
    uint32_t flags;
    uint32_t devices_count;
    uint32_t libraries_count;
    uint32_t strings_len;
    uint32_t spinning_max;
    uint32_t device_minors[...];
    ...;
};

struct nvs_report {
    struct nvs_message message;
    uint32_t protocol;
    char build[32];
    uint32_t isolation;
    int32_t pid;
    uint64_t mount_ns;
    uint64_t dev_fs_magic;
    uint64_t caps_effective;
    uint64_t caps_bounding;
    uint32_t no_new_privs;
    uint32_t seccomp_mode;
    uint32_t nodes;
    int32_t init_result;
    uint64_t began_ns;
    uint64_t step_ns[...];
    char library[...];
    ...;
};

struct nvs_failed {
    struct nvs_message message;
    struct nvs_error error;
    char tried[...];
    ...;
};

struct nvs_open {
    struct nvs_message message;
    uint32_t kind;
    uint32_t id;
    uint64_t size;
    ...;
};

struct nvs_opened {
    struct nvs_message message;
    uint32_t id;
    struct nvs_error error;
    ...;
};

const char *nvs_core_version (void);
uint32_t nvs_core_latency_slot (uint64_t ns);
uint64_t nvs_core_latency_bound (uint32_t slot);
const char *nvs_core_step_name (uint32_t step);

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

int nvs_look_file_system (const char *path, uint64_t *type);
int nvs_look_capabilities (uint64_t *effective);

int nvs_looking_max (void);

#define SOCK_STREAM    ...
#define SOCK_SEQPACKET ...
struct nvs_owned {
    int32_t fd;
    int32_t pid;
    uint64_t device;
    uint64_t inode;
};
void nvs_owned_take (struct nvs_owned *owned, int fd);
int nvs_owned_here (const struct nvs_owned *owned);
void nvs_owned_close (struct nvs_owned *owned);
int nvs_owned_pair (int type, struct nvs_owned *ours, struct nvs_owned *theirs);
int nvs_owned_send (const struct nvs_owned *owned, const void *bytes, size_t size, int passed, int timeout_ms,
                    size_t *sent);
int nvs_owned_receive (const struct nvs_owned *owned, void *bytes, size_t size, int timeout_ms, size_t *got);
void nvs_owned_shut (const struct nvs_owned *owned);
void nvs_await_any (const int32_t *fds, uint32_t count, int timeout_ms);

int nvs_spawn (const char *path, char *const *envp, int control, int32_t *pid, struct nvs_error *error);

struct nvs_caller_lane;
struct nvs_caller_lane *nvs_lane_new (int looks, int32_t *fd, struct nvs_error *error);
void nvs_lane_sent (struct nvs_caller_lane *lane);
int nvs_lane_submit (struct nvs_caller_lane *lane, const void *frame, size_t length);
int nvs_lane_wait (struct nvs_caller_lane *lane, int64_t wait_ns, void *reply, size_t capacity, uint32_t *length);
struct nvs_end {
    int32_t pidfd;
    int32_t stopping;
};
int nvs_lane_wait_on (struct nvs_caller_lane *lane, const struct nvs_end *end, int64_t wait_ns, void *reply,
                      size_t capacity, uint32_t *length);
int nvs_lane_call (struct nvs_caller_lane *lane, const void *frame, size_t length, int64_t wait_ns, void *reply,
                   size_t capacity, uint32_t *reply_length);
int nvs_lane_enter (struct nvs_caller_lane *lane);
void nvs_lane_leave (struct nvs_caller_lane *lane);
int nvs_lane_answered (const struct nvs_caller_lane *lane);
int nvs_lane_busy (const struct nvs_caller_lane *lane);
int nvs_lane_taken (const struct nvs_caller_lane *lane);

struct nvs_waits {
    uint64_t sleeps;
    uint64_t looks;
    uint64_t futile;
    uint64_t hopeless;
};
void nvs_lane_waits (const struct nvs_caller_lane *lane, struct nvs_waits *waits);
void nvs_lane_close (struct nvs_caller_lane *lane, int forked);
void nvs_lane_free (struct nvs_caller_lane *lane, int forked);
