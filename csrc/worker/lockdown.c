/* SPDX-License-Identifier: Apache-2.0 */
#include "lockdown.h"

#include <errno.h>
#include <linux/audit.h>
#include <linux/securebits.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "denylist.h"
#include "error.h"
#include "syscalls.h"

#define NVIDIA_MAJOR     195u
#define NVIDIACTL_MINOR  255u
#define MODESET_MINOR    254u
#define CAP_BIT(cap)     (UINT64_C (1) << (cap))
#define CAPS_IN_SETS_MAX 64

/* ---- policy ------------------------------------------------------------------------------------------- */

/* The numbers under which the simulator's nodes go, where no driver has registered any: nvidia, nvidia-caps,
 * nvidia-caps-imex-channels, nvidia-uvm, nvidia-nvswitch. It creates such nodes and opens none. */
static const uint32_t simulated_majors[] = { NVIDIA_MAJOR, 235, 236, 510, 234 };

static void
add_major (struct nvs_policy *policy, uint32_t major_number)
{
    for (uint32_t i = 0; i < policy->majors_count; i++) {
        if (policy->majors[i] == major_number)
            return;
    }
    if (policy->majors_count < NVS_MAJORS_MAX)
        policy->majors[policy->majors_count++] = major_number;
}

/* Calls for each line "NUMBER NAME" of a file such as /proc/devices, up to `end`. */
static void
read_registered (const char *path, const char *end, void (*found) (struct nvs_policy *, unsigned int, const char *),
                 struct nvs_policy *policy)
{
    char line[256];
    FILE *file = fopen (path, "re");

    if (file == NULL)
        return;
    while (fgets (line, sizeof line, file) != NULL && strncmp (line, end, strlen (end)) != 0) {
        unsigned int number;
        char name[128];

        if (sscanf (line, "%u %127s", &number, name) == 2)
            found (policy, number, name);
    }
    (void)fclose (file);
}

static void
found_device (struct nvs_policy *policy, unsigned int number, const char *name)
{
    if (strncmp (name, "nvidia", strlen ("nvidia")) == 0)
        add_major (policy, number);
}

static void
found_misc (struct nvs_policy *policy, unsigned int number, const char *name)
{
    (void)number;
    if (strcmp (name, "dxg") == 0)
        policy->dxg = true;
}

void
nvs_policy_read (struct nvs_policy *policy, const struct nvs_options *options)
{
    struct nvs_caps caps = { 0 };

    *policy = (struct nvs_policy){ .options = options };
    if ((options->flags & NVS_START_SIMULATED) != 0) {
        for (size_t i = 0; i < sizeof simulated_majors / sizeof *simulated_majors; i++)
            add_major (policy, simulated_majors[i]);
    } else {
        read_registered ("/proc/devices", "Block devices:", found_device, policy);
        if (policy->majors_count > 0)
            add_major (policy, NVIDIA_MAJOR);
        read_registered ("/proc/misc", "\n", found_misc, policy);
    }

    if (nvs_sys_capget (&caps) != 0)
        caps.permitted = 0;
    /* In a user namespace the kernel refuses mknod whatever the capability says (Linux: capable(), not ns_capable()),
     * and without a namespace of our own a node would be the host's. */
    policy->mknod = options->isolation == NVS_ISOLATION_MOUNT && policy->majors_count > 0
                    && (caps.permitted & CAP_BIT (CAP_MKNOD)) != 0;
    if (policy->mknod)
        policy->keep_caps |= CAP_BIT (CAP_MKNOD);
    /* The driver asks for this one in the initial user namespace, so that of our own would be of no use to it. */
    if ((options->flags & NVS_START_PRIVILEGED) != 0 && options->isolation != NVS_ISOLATION_USER)
        policy->keep_caps |= CAP_BIT (CAP_SYS_ADMIN) & caps.permitted;
}

bool
nvs_policy_shows_gpu (const struct nvs_policy *policy, unsigned int minor_number)
{
    const struct nvs_options *options = policy->options;

    if ((options->flags & NVS_START_DEVICES) == 0)
        return true;
    for (uint32_t i = 0; i < options->devices_count; i++) {
        if (options->device_minors[i] == minor_number)
            return true;
    }
    return false;
}

bool
nvs_policy_allows (const struct nvs_policy *policy, dev_t device)
{
    bool listed = false;

    for (uint32_t i = 0; i < policy->majors_count && !listed; i++)
        listed = policy->majors[i] == major (device);
    if (!listed || major (device) != NVIDIA_MAJOR)
        return listed;
    return minor (device) == NVIDIACTL_MINOR || minor (device) == MODESET_MINOR
           || nvs_policy_shows_gpu (policy, minor (device));
}

/* ---- capabilities ------------------------------------------------------------------------------------- */

uint64_t
nvs_lockdown_bounding (void)
{
    uint64_t set = 0;

    /* -1 is for those that the running kernel does not have, and they are the last. */
    for (unsigned int cap = 0; cap < CAPS_IN_SETS_MAX; cap++) {
        int found = prctl (PR_CAPBSET_READ, cap, 0, 0, 0);

        if (found < 0)
            break;
        if (found == 1)
            set |= CAP_BIT (cap);
    }
    return set;
}

/* What is kept must lie in the ambient set to last over execve: root's other way of getting capabilities, by its uid, is
 * closed below. Before the securebits, which forbid to add to it. */
static int
keep_over_exec (uint64_t kept, struct nvs_caps *caps, struct nvs_error *error)
{
    int err;

    caps->inheritable = kept;
    if (nvs_sys_capset (caps) != 0) {
        err = errno;
        return nvs_fail (error, NVS_STEP_CAPS, err, NULL, "cannot make capabilities inheritable");
    }
    for (unsigned int cap = 0; cap < CAPS_IN_SETS_MAX; cap++) {
        if ((kept & CAP_BIT (cap)) != 0 && prctl (PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, cap, 0, 0) != 0) {
            err = errno;
            return nvs_fail (error, NVS_STEP_CAPS, err, NULL, "cannot keep capability %u for the program", cap);
        }
    }
    return 0;
}

/* Everything goes but what is kept. The bounding set and the securebits can be changed only with CAP_SETPCAP, hence
 * before capset; a worker without it has nothing that they could take away, and no_new_privs follows in any case. */
int
nvs_lockdown_caps (struct nvs_policy *policy, struct nvs_error *error)
{
    const unsigned long securebits = SECBIT_NOROOT | SECBIT_NOROOT_LOCKED | SECBIT_NO_SETUID_FIXUP_LOCKED
                                     | SECBIT_KEEP_CAPS_LOCKED | SECBIT_NO_CAP_AMBIENT_RAISE
                                     | SECBIT_NO_CAP_AMBIENT_RAISE_LOCKED;
    struct nvs_caps caps;
    int err;

    if (nvs_sys_capget (&caps) != 0) {
        err = errno;
        return nvs_fail (error, NVS_STEP_CAPS, err, NULL, "cannot read the capabilities");
    }
    if (prctl (PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0) != 0) {
        err = errno;
        return nvs_fail (error, NVS_STEP_CAPS, err, NULL, "cannot clear the ambient capabilities (Linux 4.3)");
    }
    policy->keep_caps &= caps.permitted;
    if (policy->program && keep_over_exec (policy->keep_caps, &caps, error) != 0)
        return -1;
    if ((caps.effective & CAP_BIT (CAP_SETPCAP)) != 0) {
        uint64_t bounding = nvs_lockdown_bounding ();

        for (unsigned int cap = 0; cap < CAPS_IN_SETS_MAX; cap++) {
            if ((bounding & ~policy->keep_caps & CAP_BIT (cap)) == 0)
                continue;
            if (prctl (PR_CAPBSET_DROP, cap, 0, 0, 0) != 0) {
                err = errno;
                return nvs_fail (error, NVS_STEP_CAPS, err, NULL, "cannot drop capability %u from the bounding set",
                                 cap);
            }
        }
        /* A parent may have locked some of the bits differently: then it is at least as strict or not ours to say. */
        if (prctl (PR_SET_SECUREBITS, securebits, 0, 0, 0) != 0 && errno != EPERM) {
            err = errno;
            return nvs_fail (error, NVS_STEP_CAPS, err, NULL, "cannot set the securebits");
        }
    }
    caps = (struct nvs_caps){ .effective = policy->keep_caps,
                              .permitted = policy->keep_caps,
                              .inheritable = policy->program ? policy->keep_caps : 0 };
    if (nvs_sys_capset (&caps) != 0) {
        err = errno;
        return nvs_fail (error, NVS_STEP_CAPS, err, NULL, "cannot drop the capabilities");
    }
    return 0;
}

/* From here on a setuid file, nvidia-modprobe above all, gives nobody privileges. Also what lets a process without
 * CAP_SYS_ADMIN install a seccomp filter, so it comes first. */
int
nvs_lockdown_no_new_privs (struct nvs_error *error)
{
    if (prctl (PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) {
        int err = errno;

        return nvs_fail (error, NVS_STEP_NO_NEW_PRIVS, err, NULL, "cannot set no_new_privs (Linux 3.5)");
    }
    return 0;
}

/* ---- seccomp: the list -------------------------------------------------------------------------------- */

/* The calls that are refused: denylist.c has them, and has had libseccomp make the filters. */
#include "denylists.inc"

static int
load_list (unsigned int variant)
{
    struct sock_filter code[NVS_DENYLIST_MAX];
    const struct sock_fprog program = { .len = nvs_denylists[variant].length, .filter = code };

    for (size_t i = 0; i < program.len; i++) {
        code[i] = nvs_denylists[variant].code[i];
        if (code[i].code == NVS_DENYLIST_COMPARE && code[i].k == NVS_DENYLIST_SELF)
            code[i].k = (uint32_t)getpid ();
    }
    return nvs_sys_seccomp_filter (&program) == 0 ? 0 : -errno;
}

static int
load_library_list (const struct nvs_policy *policy)
{
    return load_list ((policy->mknod ? NVS_DENYLIST_MKNOD : 0)
                      | ((policy->options->flags & NVS_START_PRIVILEGED) != 0 ? NVS_DENYLIST_PRIVILEGED : 0)
                      | (policy->options->isolation == NVS_ISOLATION_GUARD ? NVS_DENYLIST_GUARD : 0));
}

/* ---- seccomp: mknod ----------------------------------------------------------------------------------- */

/*
 * A filter of its own, by hand: "character devices, but of these majors only" needs several conditions on one
 * argument, which libseccomp has no rule for. The kernel runs both filters and takes the stricter answer.
 *
 *     another architecture's call: EPERM
 *     mode, dev = the arguments of mknod or mknodat; any other call: allow
 *     block device: EPERM.  Not a character device (file, FIFO, socket): allow
 *     dev & mask == value for one of the list: allow.  Else EPERM
 *
 * The kernel takes the lower 32 bits of dev and the lower 16 of mode, and so does this.
 */
#define RULES_MAX  (NVS_MAJORS_MAX + NVS_DEVICES_MAX + 2)
#define FILTER_MAX (32 + 4 * RULES_MAX)

#ifdef __x86_64__
#define NATIVE_ARCH     AUDIT_ARCH_X86_64
#define X32_SYSCALL_BIT 0x40000000u
#else
#define NATIVE_ARCH AUDIT_ARCH_AARCH64
#endif

struct mknod_filter {
    struct sock_filter code[FILTER_MAX];
    unsigned short length;
};

enum {
    MODE_WORD,
    DEV_WORD
}; /* of the filter's scratch memory */

static void
emit (struct mknod_filter *filter, unsigned int code, uint32_t k, unsigned int if_true, unsigned int if_false)
{
    filter->code[filter->length++] =
        (struct sock_filter){ (unsigned short)code, (unsigned char)if_true, (unsigned char)if_false, k };
}

static void
emit_load_args (struct mknod_filter *filter, unsigned int mode_arg, unsigned int dev_arg)
{
    const uint32_t args = (uint32_t)offsetof (struct seccomp_data, args);

    emit (filter, BPF_LD | BPF_W | BPF_ABS, args + 8 * mode_arg, 0, 0);
    emit (filter, BPF_ST, MODE_WORD, 0, 0);
    emit (filter, BPF_LD | BPF_W | BPF_ABS, args + 8 * dev_arg, 0, 0);
    emit (filter, BPF_ST, DEV_WORD, 0, 0);
}

static void
emit_allow_device (struct mknod_filter *filter, uint32_t mask, uint32_t value)
{
    emit (filter, BPF_LD | BPF_MEM, DEV_WORD, 0, 0);
    emit (filter, BPF_ALU | BPF_AND | BPF_K, mask, 0, 0);
    emit (filter, BPF_JMP | BPF_JEQ | BPF_K, value, 0, 1);
    emit (filter, BPF_RET | BPF_K, SECCOMP_RET_ALLOW, 0, 0);
}

/* As the system call has it, which is not how the C library's dev_t has it above 32 bits. */
static uint32_t
device_word (uint32_t major_number, uint32_t minor_number)
{
    return (minor_number & 0xffu) | (major_number & 0xfffu) << 8 | (minor_number & ~0xffu) << 12;
}

static void
emit_allowed_devices (struct mknod_filter *filter, const struct nvs_policy *policy)
{
    const struct nvs_options *options = policy->options;
    const uint32_t major_mask = device_word (0xfff, 0);

    for (uint32_t i = 0; i < policy->majors_count; i++) {
        uint32_t number = policy->majors[i];

        if (number != NVIDIA_MAJOR || (options->flags & NVS_START_DEVICES) == 0) {
            emit_allow_device (filter, major_mask, device_word (number, 0));
            continue;
        }
        emit_allow_device (filter, UINT32_MAX, device_word (NVIDIA_MAJOR, NVIDIACTL_MINOR));
        emit_allow_device (filter, UINT32_MAX, device_word (NVIDIA_MAJOR, MODESET_MINOR));
        for (uint32_t d = 0; d < options->devices_count; d++)
            emit_allow_device (filter, UINT32_MAX, device_word (NVIDIA_MAJOR, options->device_minors[d]));
    }
}

static const char filter_remedy[] = "cannot install the seccomp filter: the kernel needs CONFIG_SECCOMP_FILTER, and an "
                                    "outer seccomp profile must allow the call seccomp";

static int
load_mknod_filter (const struct nvs_policy *policy)
{
    const uint32_t eperm = SECCOMP_RET_ERRNO | (EPERM & SECCOMP_RET_DATA);
    struct mknod_filter filter = { .length = 0 };
    struct sock_fprog program = { .filter = filter.code };

    /* Another architecture's numbers mean other calls. `run` loads this filter without the list, which refuses them too. */
    emit (&filter, BPF_LD | BPF_W | BPF_ABS, (uint32_t)offsetof (struct seccomp_data, arch), 0, 0);
    emit (&filter, BPF_JMP | BPF_JEQ | BPF_K, NATIVE_ARCH, 1, 0);
    emit (&filter, BPF_RET | BPF_K, eperm, 0, 0);
    emit (&filter, BPF_LD | BPF_W | BPF_ABS, (uint32_t)offsetof (struct seccomp_data, nr), 0, 0);
#ifdef __x86_64__
    /* x32 has the calls of x86-64 a second time, from this number on; -1 is a call that a tracer has had skipped. */
    emit (&filter, BPF_JMP | BPF_JGE | BPF_K, X32_SYSCALL_BIT, 0, 2);
    emit (&filter, BPF_JMP | BPF_JEQ | BPF_K, UINT32_MAX, 1, 0);
    emit (&filter, BPF_RET | BPF_K, eperm, 0, 0);
#endif
#ifdef SYS_mknod
    emit (&filter, BPF_JMP | BPF_JEQ | BPF_K, SYS_mknod, 0, 5);
    emit_load_args (&filter, 1, 2);
    emit (&filter, BPF_JMP | BPF_JA, 6, 0, 0);
#endif
    emit (&filter, BPF_JMP | BPF_JEQ | BPF_K, SYS_mknodat, 1, 0);
    emit (&filter, BPF_RET | BPF_K, SECCOMP_RET_ALLOW, 0, 0);
    emit_load_args (&filter, 2, 3);

    emit (&filter, BPF_LD | BPF_MEM, MODE_WORD, 0, 0);
    emit (&filter, BPF_ALU | BPF_AND | BPF_K, S_IFMT, 0, 0);
    emit (&filter, BPF_JMP | BPF_JEQ | BPF_K, S_IFBLK, 0, 1);
    emit (&filter, BPF_RET | BPF_K, eperm, 0, 0);
    emit (&filter, BPF_JMP | BPF_JEQ | BPF_K, S_IFCHR, 1, 0);
    emit (&filter, BPF_RET | BPF_K, SECCOMP_RET_ALLOW, 0, 0);
    if (policy->mknod)
        emit_allowed_devices (&filter, policy);
    emit (&filter, BPF_RET | BPF_K, eperm, 0, 0);

    program.len = filter.length;
    return nvs_sys_seccomp_filter (&program) == 0 ? 0 : -errno;
}

static int
loaded (int rc, struct nvs_error *error)
{
    return rc == 0 ? 0 : nvs_fail (error, NVS_STEP_SECCOMP, -rc, NULL, "%s", filter_remedy);
}

int
nvs_lockdown_mknod (const struct nvs_policy *policy, struct nvs_error *error)
{
    return loaded (load_mknod_filter (policy), error);
}

int
nvs_lockdown_program (struct nvs_error *error)
{
    return loaded (load_list (NVS_DENYLIST_PROGRAM), error);
}

/* Last, for the steps before need what these filters refuse. There is one thread: the filters need no synchronising,
 * and every thread that NVML and the channels start inherits them. */
int
nvs_lockdown_seccomp (const struct nvs_policy *policy, struct nvs_error *error)
{
    int rc = load_mknod_filter (policy);

    return loaded (rc == 0 ? load_library_list (policy) : rc, error);
}
