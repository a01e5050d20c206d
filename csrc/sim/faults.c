/* SPDX-License-Identifier: Apache-2.0 */
/* How each call begins and ends, what can be made to go wrong there, and the checks that calls have in common. */
#include "sim.h"

#include <errno.h>
#include <linux/capability.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
unsigned nvs_references;

void
nvs_sleep_us (uint64_t us)
{
    struct timespec left = { .tv_sec = (time_t)(us / 1000000), .tv_nsec = (long)(us % 1000000) * 1000 };

    while (nanosleep (&left, &left) != 0 && errno == EINTR)
        ;
}

/* Without its _vN, or the V of one that has a version in its structure. No function ends in such a V otherwise. */
static size_t
stem (const char *name)
{
    size_t length = strlen (name);

    if (length > 3 && name[length - 3] == '_' && name[length - 2] == 'v')
        return length - 3;
    return length > 1 && name[length - 1] == 'V' ? length - 1 : length;
}

/* All versions of a function are meant by any of them: hang=nvmlDeviceGetCount is also nvmlDeviceGetCount_v2, and
 * hang=nvmlDeviceGetTemperature nvmlDeviceGetTemperatureV. */
static bool
is_meant (const char *name, const char *function)
{
    if (strcmp (name, "nvmlInitWithFlags") == 0)
        name = "nvmlInit";
    return stem (name) == stem (function) && strncmp (name, function, stem (name)) == 0;
}

static void
crash (enum nvs_crash how)
{
    struct sigaction standard = { .sa_handler = SIG_DFL };
    sigset_t set;

    switch (how) {
    case NVS_CRASH_EXIT: exit (0);
    case NVS_CRASH_ABORT: abort ();
    case NVS_CRASH_SEGV:
        /* Sent, for a bad address is what a sanitizer would explain at length. A real fault kills although the
         * thread blocks the signal; one that is sent has to be let through. */
        (void)sigemptyset (&set);
        (void)sigaddset (&set, SIGSEGV);
        (void)pthread_sigmask (SIG_UNBLOCK, &set, NULL);
        (void)sigaction (SIGSEGV, &standard, NULL);
        (void)raise (SIGSEGV);
        abort ();
    }
}

/* Without the lock: a hanging or slow call must not hold up those of other threads. The options change only in the
 * first nvmlInit, when no other call is under way. */
void
nvs_inject (const char *function)
{
    const struct nvs_options *options = &nvs_machine.options;

    if (options->hang[0] != '\0' && is_meant (options->hang, function))
        for (;;)
            nvs_sleep_us (3600ull * 1000000);
    if (options->crash.function[0] != '\0' && is_meant (options->crash.function, function))
        crash (options->crash.how);
    if (options->leak_kib != 0) {
        size_t size = (size_t)options->leak_kib * 1024;
        static void *leaked; /* a chain, so that neither analysers nor sanitizers take what is meant for a fault */
        char *leak = malloc (size);

        if (leak != NULL) {
            memset (leak, 1, size); /* untouched it would cost no memory */
            *(void **)(void *)leak = __atomic_exchange_n (&leaked, (void *)leak, __ATOMIC_RELAXED);
        }
    }
    if (options->latency_us != 0)
        nvs_sleep_us (options->latency_us);
}

void
nvs_begin_init (struct nvs_call *call)
{
    call->result = NVML_SUCCESS;
    (void)pthread_mutex_lock (&lock);
    call->locked = true;
}

nvmlReturn_t
nvs_begin (struct nvs_call *call, const char *function)
{
    bool initialised = false;

    nvs_begin_init (call);
    initialised = nvs_references != 0;
    nvs_end (call);
    if (!initialised)
        return call->result = NVML_ERROR_UNINITIALIZED;
    nvs_inject (function);
    nvs_begin_init (call);
    /* Another thread may have shut down in the meantime. */
    if (nvs_references == 0)
        call->result = NVML_ERROR_UNINITIALIZED;
    return call->result;
}

void
nvs_end (struct nvs_call *call)
{
    if (call->locked)
        (void)pthread_mutex_unlock (&lock);
    call->locked = false;
}

void
nvs_wake (void)
{
    (void)pthread_cond_broadcast (&changed);
}

nvmlReturn_t
nvs_wait (struct nvs_call *call, unsigned timeout_ms, const void *handle, int kind)
{
    struct timespec until;
    int result = 0;

    /* The caller's lock is the one that the condition variable gives back and takes again. */
    (void)call;
    (void)clock_gettime (CLOCK_MONOTONIC, &until);
    until.tv_sec += timeout_ms / 1000;
    until.tv_nsec += (long)(timeout_ms % 1000) * 1000000;
    if (until.tv_nsec >= 1000000000) {
        until.tv_sec++;
        until.tv_nsec -= 1000000000;
    }
    while (result == 0) {
        if (timeout_ms == NVS_NO_ID)
            result = pthread_cond_wait (&changed, &lock);
        else
            result = pthread_cond_clockwait (&changed, &lock, CLOCK_MONOTONIC, &until);
        if (nvs_references == 0)
            return NVML_ERROR_UNINITIALIZED;
        if (!nvs_handle_exists (handle, kind))
            return NVML_ERROR_INVALID_ARGUMENT;
    }
    return NVML_ERROR_TIMEOUT;
}

nvmlReturn_t
nvs_device_check (nvmlDevice_t device)
{
    if (!nvs_handle_known (device, NVS_HANDLE_DEVICE))
        return NVML_ERROR_INVALID_ARGUMENT;
    return device->gpu->lost ? NVML_ERROR_GPU_IS_LOST : NVML_SUCCESS;
}

nvmlReturn_t
nvs_gpu_of (nvmlDevice_t device, struct nvs_gpu **gpu)
{
    TRY (nvs_device_check (device));
    if (device->gi != NULL)
        return NVML_ERROR_NOT_SUPPORTED;
    *gpu = device->gpu;
    return NVML_SUCCESS;
}

/* Effective capabilities of this thread, asked for each time: they may have been dropped since. */
bool
nvs_is_admin (void)
{
    struct __user_cap_header_struct header = { .version = _LINUX_CAPABILITY_VERSION_3 };
    struct __user_cap_data_struct data[_LINUX_CAPABILITY_U32S_3] = { 0 };

    if (syscall (SYS_capget, &header, data) != 0)
        return false;
    return (data[CAP_SYS_ADMIN / 32].effective & 1u << CAP_SYS_ADMIN % 32) != 0;
}

nvmlReturn_t
nvs_text (char *out, unsigned size, const char *text)
{
    size_t length = strlen (text);

    NEED (out);
    if (size <= length)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    memcpy (out, text, length + 1);
    return NVML_SUCCESS;
}

unsigned
nvs_grown (unsigned have)
{
    return have + nvs_machine.growth;
}

nvmlReturn_t
nvs_list (unsigned *count, const void *out, unsigned have)
{
    unsigned room = 0;

    NEED (count);
    room = out != NULL ? *count : 0;
    if (nvs_machine.options.insufficient) {
        *count = have + 1 > room ? have + 1 : room + 1;
        return NVML_ERROR_INSUFFICIENT_SIZE;
    }
    *count = have;
    if (nvs_machine.options.grow && room == 0 && nvs_machine.growth < 1000)
        nvs_machine.growth++;
    /* An empty list is no reason to complain about room. */
    return have > room ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}
