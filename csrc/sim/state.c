/* SPDX-License-Identifier: Apache-2.0 */
/* The simulated machine: its GPUs, the handles that stand for things, and its clock. */
#include "sim.h"

#include <stdlib.h>
#include <time.h>

struct nvs_machine nvs_machine;

/* Every handle that was given out and not taken back, so that a wrong one is refused and never dereferenced. Searched
 * from the start: devices come first, and there are few. */
struct entry {
    void *handle;
    int kind;
};
static struct entry *entries;
static size_t entries_count, entries_room;
static char last_description[1024];

void *
nvs_handle_new (size_t size, int kind)
{
    void *handle = NULL;

    if (entries_count == entries_room) {
        size_t room = entries_room == 0 ? 64 : 2 * entries_room;
        struct entry *more = realloc (entries, room * sizeof *more);

        if (more == NULL)
            return NULL;
        entries = more;
        entries_room = room;
    }
    handle = calloc (1, size);
    if (handle != NULL)
        entries[entries_count++] = (struct entry){ handle, kind };
    return handle;
}

bool
nvs_handle_exists (const void *handle, int kind)
{
    for (size_t i = 0; i < entries_count; i++)
        if (entries[i].handle == handle && entries[i].kind == kind)
            return true;
    return false;
}

static void
forget (size_t i)
{
    entries_count--;
    memmove (&entries[i], &entries[i + 1], (entries_count - i) * sizeof *entries);
}

void
nvs_handle_free (void *handle)
{
    for (size_t i = 0; i < entries_count; i++)
        if (entries[i].handle == handle) {
            forget (i);
            free (handle);
            return;
        }
}

bool
nvs_handle_known (const void *handle, int kind)
{
    if (nvs_handle_exists (handle, kind))
        return true;
    /* The real library dereferences what it is given, and dies of it. */
    if (nvs_machine.options.strict_handles && handle != NULL)
        abort ();
    return false;
}

uint64_t
nvs_hash (uint64_t a, uint64_t b)
{
    uint64_t x = a * 0x9e3779b97f4a7c15ull ^ (b + 0x632be59bd9b4e019ull);

    /* The finaliser of MurmurHash3: every bit of the input moves every bit of the result. */
    x ^= x >> 33;
    x *= 0xff51afd7ed558ccdull;
    x ^= x >> 33;
    x *= 0xc4ceb9fe1a85ec53ull;
    x ^= x >> 33;
    return x;
}

void
nvs_uuid_make (char text[48], uint8_t bytes[16], const char *prefix, uint64_t a, uint64_t b)
{
    uint64_t words[2] = { nvs_hash (a, b), nvs_hash (b ^ 0x5555, a) };

    memcpy (bytes, words, sizeof words);
    (void)snprintf (text, 48, "%s%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", prefix,
                    bytes[0], bytes[1], bytes[2], bytes[3], bytes[4], bytes[5], bytes[6], bytes[7], bytes[8], bytes[9],
                    bytes[10], bytes[11], bytes[12], bytes[13], bytes[14], bytes[15]);
}

/* CLOCK_BOOTTIME, so that processes which look at the same moment see the same machine, as with a real driver. */
double
nvs_seconds (void)
{
    struct timespec now;

    if (nvs_machine.options.frozen)
        return 86400.0;
    (void)clock_gettime (CLOCK_BOOTTIME, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

uint64_t
nvs_unix_us (void)
{
    struct timespec now;

    if (nvs_machine.options.frozen)
        return 1760000000000000ull;
    (void)clock_gettime (CLOCK_REALTIME, &now);
    return (uint64_t)now.tv_sec * 1000000u + (uint64_t)now.tv_nsec / 1000u;
}

static bool
listed (const struct nvs_indexes *list, unsigned value)
{
    for (unsigned i = 0; i < list->count; i++)
        if (list->values[i] == value)
            return true;
    return false;
}

static int
gpu_setup (struct nvs_gpu *gpu, const struct nvs_options *options, unsigned slot)
{
    const struct nvs_profile *profile = options->profile;
    uint64_t identity = nvs_hash (options->seed, (uint64_t)profile->device_id << 8 | slot);

    *gpu = (struct nvs_gpu){
        .profile = profile,
        .slot = slot,
        .minor = options->minors.count != 0 ? options->minors.values[slot] : slot,
        .lost = listed (&options->lost, slot),
        /* Two GPUs on each host bridge, as on common boards; the buses of a domain have numbers for 16. GB200 numbers
         * domains instead. */
        .domain = profile->c2c ? 8 * slot + 8 : slot / 16,
        .bus = profile->c2c ? 1 : 0x10 + 8 * (slot % 16) + slot % 16 / 2,
        .persistence = 1,
        .ecc_pending = profile->ecc,
        .power_limit_mw = profile->power_default_mw,
        .app_clock_mem = profile->clock_memory,
        .app_clock_graphics = profile->clock_graphics,
    };
    nvs_uuid_make (gpu->uuid, gpu->uuid_bytes, "GPU-", identity, slot);
    (void)snprintf (gpu->serial, sizeof gpu->serial, "165%010llu", (unsigned long long)(identity % 10000000000ull));
    (void)snprintf (gpu->bus_id, sizeof gpu->bus_id, "%08X:%02X:00.0", gpu->domain, gpu->bus);
    (void)snprintf (gpu->bus_id_short, sizeof gpu->bus_id_short, "%04X:%02X:00.0", gpu->domain, gpu->bus);
    (void)snprintf (gpu->part_number, sizeof gpu->part_number, "%s", profile->part_number);
    gpu->device = nvs_handle_new (sizeof *gpu->device, NVS_HANDLE_DEVICE);
    if (gpu->device == NULL)
        return -1;
    gpu->device->gpu = gpu;
    return options->mig[0] != '\0' ? nvs_mig_layout (gpu, options->mig) : 0;
}

/* Called by the nvmlInit that counts from 0 to 1. The machine stays as it was left, as a driver's state does, if
 * it is described as before. With strict_handles=1 it is made anew, and so are its handles: the old ones stay
 * allocated, so that no new handle has an old one's address. */
int
nvs_machine_setup (const struct nvs_options *options, const char *description)
{
    if (!options->strict_handles && strcmp (description, last_description) == 0)
        return 0;
    last_description[0] = '\0';
    for (size_t i = 0; i < entries_count; i++) {
        if (!options->strict_handles)
            free (entries[i].handle);
        entries[i].kind = 0; /* of no kind: unknown */
    }
    if (!options->strict_handles)
        entries_count = 0;
    nvs_machine = (struct nvs_machine){ .options = *options };
    for (unsigned slot = 0; slot < options->count; slot++) {
        struct nvs_gpu *gpu = &nvs_machine.gpus[nvs_machine.count];

        if (options->visible.count != 0 && !listed (&options->visible, slot))
            continue;
        if (gpu_setup (gpu, options, slot) != 0)
            return -1;
        gpu->index = nvs_machine.count++;
    }
    (void)snprintf (last_description, sizeof last_description, "%s", description);
    return 0;
}
