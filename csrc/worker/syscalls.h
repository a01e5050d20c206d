/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The system calls that have no wrapper in every C library that we build against, in one place where a review finds
 * them all. Each behaves as a wrapper would: -1 and errno, ENOSYS where the running kernel lacks it.
 */
#ifndef NVSANDBOX_WORKER_SYSCALLS_H
#define NVSANDBOX_WORKER_SYSCALLS_H

#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <unistd.h>

#if !defined __x86_64__ && !(defined __aarch64__ && defined __AARCH64EL__)
#error "nvsandbox knows the system calls of x86-64 and little-endian aarch64 only"
#endif

/* Linux 5.9. From 424 on, numbers are the same on every architecture. */
#ifndef SYS_close_range
#define SYS_close_range 436
#endif

static inline int
nvs_sys_close_range (unsigned int first, unsigned int last)
{
    return (int)syscall (SYS_close_range, first, last, 0u);
}

/* Linux 5.13, the same everywhere. */
#define NVS_SYS_LANDLOCK_CREATE   444
#define NVS_SYS_LANDLOCK_ADD_RULE 445
#define NVS_SYS_LANDLOCK_RESTRICT 446

static inline long
nvs_sys_landlock_create (const void *attributes, size_t size, unsigned int flags)
{
    return syscall (NVS_SYS_LANDLOCK_CREATE, attributes, size, flags);
}

static inline int
nvs_sys_landlock_add_rule (int ruleset, int type, const void *rule)
{
    return (int)syscall (NVS_SYS_LANDLOCK_ADD_RULE, ruleset, type, rule, 0u);
}

static inline int
nvs_sys_landlock_restrict (int ruleset)
{
    return (int)syscall (NVS_SYS_LANDLOCK_RESTRICT, ruleset, 0u);
}

/* Capability sets as 64-bit masks; the kernel's interface splits them into two halves. */
struct nvs_caps {
    uint64_t effective;
    uint64_t permitted;
    uint64_t inheritable;
};

/* capget and capset without libcap: a library less in the privileged half. */
static inline int
nvs_sys_capget (struct nvs_caps *caps)
{
    struct __user_cap_header_struct header = { .version = _LINUX_CAPABILITY_VERSION_3, .pid = 0 };
    struct __user_cap_data_struct data[_LINUX_CAPABILITY_U32S_3] = { 0 };

    if (syscall (SYS_capget, &header, data) != 0)
        return -1;
    caps->effective = (uint64_t)data[1].effective << 32 | data[0].effective;
    caps->permitted = (uint64_t)data[1].permitted << 32 | data[0].permitted;
    caps->inheritable = (uint64_t)data[1].inheritable << 32 | data[0].inheritable;
    return 0;
}

static inline int
nvs_sys_capset (const struct nvs_caps *caps)
{
    struct __user_cap_header_struct header = { .version = _LINUX_CAPABILITY_VERSION_3, .pid = 0 };
    struct __user_cap_data_struct data[_LINUX_CAPABILITY_U32S_3] = {
        { .effective = (uint32_t)caps->effective,
          .permitted = (uint32_t)caps->permitted,
          .inheritable = (uint32_t)caps->inheritable },
        { .effective = (uint32_t)(caps->effective >> 32),
          .permitted = (uint32_t)(caps->permitted >> 32),
          .inheritable = (uint32_t)(caps->inheritable >> 32) },
    };

    return (int)syscall (SYS_capset, &header, data);
}

static inline int
nvs_sys_seccomp_filter (const struct sock_fprog *program)
{
    return (int)syscall (SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0u, program);
}

#endif
