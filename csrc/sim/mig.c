/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Multi-Instance GPU: GPU instances, their compute instances, and the devices that these are to callers. A GPU has
 * eight memory slices, of which an instance takes a run that starts where its profile may start, and seven compute
 * slices.
 */
#include "sim.h"

#include <stdlib.h>

#define COMPUTE_SLICES 7u
#define CI_PROFILES    5u /* 1, 2, 3, 4 and 7 slices: their number, by which callers ask, is also their id */

static const unsigned ci_slices[CI_PROFILES] = { 1, 2, 3, 4, 7 };

/* ---- placing ------------------------------------------------------------------------------------------ */

static const struct nvs_mig_profile *
profile_by_id (const struct nvs_gpu *gpu, unsigned id)
{
    const struct nvs_mig_profile *profile = NULL;

    for (unsigned n = 0; (profile = nvs_mig_profile (gpu->profile, n)) != NULL; n++)
        if (profile->id == id)
            return profile;
    return NULL;
}

static const struct nvs_mig_profile *
profile_by_index (const struct nvs_gpu *gpu, unsigned index)
{
    const struct nvs_mig_profile *profile = NULL;

    for (unsigned n = 0; (profile = nvs_mig_profile (gpu->profile, n)) != NULL; n++)
        if (profile->index == index)
            return profile;
    return NULL;
}

static unsigned
run_mask (unsigned start, unsigned size)
{
    return ((1u << size) - 1) << start;
}

/* The memory slices in use, and how many compute slices and media extensions are. */
static unsigned
in_use (const struct nvs_gpu *gpu, unsigned *compute, unsigned *extensions)
{
    unsigned mask = 0;

    *compute = *extensions = 0;
    for (unsigned i = 0; i < NVS_SLICES; i++)
        if (gpu->gis[i] != NULL) {
            const struct nvs_mig_profile *profile = gpu->gis[i]->profile;

            mask |= run_mask (gpu->gis[i]->start, profile->memory_slices);
            *compute += profile->slices;
            *extensions += profile->index == 7;
        }
    return mask;
}

static bool
fits (const struct nvs_gpu *gpu, const struct nvs_mig_profile *profile, unsigned start)
{
    unsigned compute = 0, extensions = 0;
    unsigned mask = in_use (gpu, &compute, &extensions);

    return start < NVS_SLICES && (profile->starts & 1u << start) != 0
           && (mask & run_mask (start, profile->memory_slices)) == 0 && compute + profile->slices <= COMPUTE_SLICES
           && !(profile->index == 7 && extensions > 0);
}

/* Ids as the driver gives them: 0 for the whole, then the halves, the quarters, the single slices from 7. */
static unsigned
gi_id (const struct nvs_mig_profile *profile, unsigned start)
{
    switch (profile->slices) {
    case 7: return 0;
    case 4:
    case 3: return 1 + start / 4;
    case 2: return 3 + start / 2;
    default: return 7 + start;
    }
}

static struct nvs_ci *
ci_create (struct nvs_gi *gi, unsigned slices, unsigned start)
{
    struct nvs_gpu *gpu = gi->gpu;
    struct nvs_ci *ci = nvs_handle_new (sizeof *ci, NVS_HANDLE_CI);
    uint8_t bytes[16];

    if (ci == NULL)
        return NULL;
    ci->device = nvs_handle_new (sizeof *ci->device, NVS_HANDLE_DEVICE);
    if (ci->device == NULL) {
        nvs_handle_free (ci);
        return NULL;
    }
    *ci->device = (struct nvs_device){ gpu, gi, ci };
    ci->gi = gi;
    ci->slices = slices;
    ci->start = start;
    while (gi->cis[ci->id] != NULL) /* there are as many places as slices */
        ci->id++;
    gi->cis[ci->id] = ci;
    nvs_uuid_make (ci->uuid, bytes, "MIG-", nvs_hash (nvs_machine.options.seed, 3000 + gpu->slot),
                   gi->id * 64 + ci->id * 8 + slices);
    return ci;
}

static void
ci_destroy (struct nvs_ci *ci)
{
    ci->gi->cis[ci->id] = NULL;
    nvs_handle_free (ci->device);
    nvs_handle_free (ci);
}

/* Instances are kept in the order of their ids, which is the order of MIG device indexes. */
static struct nvs_gi *
gi_create (struct nvs_gpu *gpu, const struct nvs_mig_profile *profile, unsigned start)
{
    struct nvs_gi *gi = nvs_handle_new (sizeof *gi, NVS_HANDLE_GI);
    struct nvs_gi *moving = gi;

    if (gi == NULL)
        return NULL;
    gi->gpu = gpu;
    gi->profile = profile;
    gi->start = start;
    gi->id = gi_id (profile, start);
    for (unsigned i = 0; i < NVS_SLICES && moving != NULL; i++)
        if (gpu->gis[i] == NULL || gpu->gis[i]->id > moving->id) {
            struct nvs_gi *next = gpu->gis[i];

            gpu->gis[i] = moving;
            moving = next;
        }
    return gi;
}

static void
gi_destroy (struct nvs_gi *gi)
{
    struct nvs_gpu *gpu = gi->gpu;
    unsigned i = 0;

    for (unsigned j = 0; j < NVS_SLICES; j++)
        if (gi->cis[j] != NULL)
            ci_destroy (gi->cis[j]);
    while (gpu->gis[i] != gi)
        i++;
    memmove (&gpu->gis[i], &gpu->gis[i + 1], (NVS_SLICES - 1 - i) * sizeof (struct nvs_gi *));
    gpu->gis[NVS_SLICES - 1] = NULL;
    nvs_handle_free (gi);
}

void
nvs_mig_clear (struct nvs_gpu *gpu)
{
    while (gpu->gis[0] != NULL)
        gi_destroy (gpu->gis[0]);
}

/* The first start that fits; an instance of three slices goes to the upper half if it can, for one of four needs the
 * lower. */
static struct nvs_gi *
gi_place (struct nvs_gpu *gpu, const struct nvs_mig_profile *profile)
{
    if (profile->slices == 3 && fits (gpu, profile, 4))
        return gi_create (gpu, profile, 4);
    for (unsigned start = 0; start < NVS_SLICES; start++)
        if (fits (gpu, profile, start))
            return gi_create (gpu, profile, start);
    return NULL;
}

/* One NAME[*N] of a layout: the profile's place in the GPU's list, and N. "+me" is the end of a name, although +
 * separates. */
static int
layout_word (const struct nvs_gpu *gpu, const char **text, unsigned *n, unsigned *times)
{
    const struct nvs_mig_profile *profile = NULL;
    size_t length = strcspn (*text, "+*");

    if (strncmp (*text + length, "+me", 3) == 0 && strchr ("+*", (*text)[length + 3]) != NULL)
        length += 3;
    for (*n = 0; (profile = nvs_mig_profile (gpu->profile, *n)) != NULL; ++*n)
        if (strlen (profile->name) == length && strncmp (profile->name, *text, length) == 0)
            break;
    if (profile == NULL)
        return -1;
    *text += length;
    *times = 1;
    if (**text == '*') {
        char *end = NULL;

        *times = (unsigned)strtoul (*text + 1, &end, 10);
        *text = end;
    }
    if (**text == '+')
        ++*text;
    else if (**text != '\0')
        return -1;
    return *times >= 1 && *times <= COMPUTE_SLICES ? 0 : -1;
}

/* NAME[*N]+NAME[*N]…: each with one compute instance that is all of it. The largest are placed first, so that
 * what fits in some order fits in any. */
int
nvs_mig_layout (struct nvs_gpu *gpu, const char *layout)
{
    unsigned wanted[16] = { 0 };

    gpu->mig = gpu->mig_pending = 1;
    while (*layout != '\0') {
        unsigned n = 0, times = 0;

        if (layout_word (gpu, &layout, &n, &times) != 0)
            return -1;
        wanted[n] += times;
    }
    for (unsigned slices = COMPUTE_SLICES; slices > 0; slices--) {
        const struct nvs_mig_profile *profile = NULL;

        for (unsigned n = 0; (profile = nvs_mig_profile (gpu->profile, n)) != NULL; n++)
            for (; profile->slices == slices && wanted[n] > 0; wanted[n]--) {
                struct nvs_gi *gi = gi_place (gpu, profile);

                if (gi == NULL || ci_create (gi, profile->slices, 0) == NULL)
                    return -1;
            }
    }
    return 0;
}

struct nvs_ci *
nvs_mig_device (struct nvs_gpu *gpu, unsigned index)
{
    for (unsigned i = 0; i < NVS_SLICES && gpu->gis[i] != NULL; i++)
        for (unsigned j = 0; j < NVS_SLICES; j++)
            if (gpu->gis[i]->cis[j] != NULL && index-- == 0)
                return gpu->gis[i]->cis[j];
    return NULL;
}

/* ---- checks ------------------------------------------------------------------------------------------- */

static nvmlReturn_t
gi_check (nvmlGpuInstance_t gi)
{
    if (!nvs_handle_known (gi, NVS_HANDLE_GI))
        return NVML_ERROR_INVALID_ARGUMENT;
    return gi->gpu->lost ? NVML_ERROR_GPU_IS_LOST : NVML_SUCCESS;
}

static nvmlReturn_t
ci_check (nvmlComputeInstance_t ci)
{
    if (!nvs_handle_known (ci, NVS_HANDLE_CI))
        return NVML_ERROR_INVALID_ARGUMENT;
    return ci->gi->gpu->lost ? NVML_ERROR_GPU_IS_LOST : NVML_SUCCESS;
}

#define MIG_GPU(device)     \
    GPU (device);           \
    if (!gpu->profile->mig) \
    return NVML_ERROR_NOT_SUPPORTED

/* What needs MIG mode to be on, and not only possible. */
#define MIG_ON(device) \
    MIG_GPU (device);  \
    if (!gpu->mig)     \
    return NVML_ERROR_NOT_SUPPORTED

/* ---- mode and devices --------------------------------------------------------------------------------- */

API nvmlReturn_t
nvmlDeviceGetMigMode (nvmlDevice_t device, unsigned int *current, unsigned int *pending)
{
    BEGIN ();
    MIG_GPU (device);
    NEED (current);
    NEED (pending);
    *current = gpu->mig;
    *pending = gpu->mig_pending;
    return NVML_SUCCESS;
}

API nvmlReturn_t
nvmlDeviceSetMigMode (nvmlDevice_t device, unsigned int mode, nvmlReturn_t *status)
{
    BEGIN ();
    MIG_GPU (device);
    NEED (status);
    if (mode > 1)
        return NVML_ERROR_INVALID_ARGUMENT;
    NEED_ADMIN ();
    *status = NVML_SUCCESS;
    gpu->mig_pending = mode;
    if (mode == 0 && gpu->gis[0] != NULL) {
        *status = NVML_ERROR_IN_USE;
        return NVML_SUCCESS;
    }
    gpu->mig = mode;
    return NVML_SUCCESS;
}

API nvmlReturn_t
nvmlDeviceIsMigDeviceHandle (nvmlDevice_t device, unsigned int *is_mig)
{
    BEGIN ();
    DEVICE (device);
    NEED (is_mig);
    *is_mig = device->gi != NULL;
    return NVML_SUCCESS;
}

API nvmlReturn_t
nvmlDeviceGetGpuInstanceId (nvmlDevice_t device, unsigned int *id)
{
    BEGIN ();
    DEVICE (device);
    NEED (id);
    if (device->gi == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    *id = device->gi->id;
    return NVML_SUCCESS;
}

API nvmlReturn_t
nvmlDeviceGetComputeInstanceId (nvmlDevice_t device, unsigned int *id)
{
    BEGIN ();
    DEVICE (device);
    NEED (id);
    if (device->ci == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    *id = device->ci->id;
    return NVML_SUCCESS;
}

API nvmlReturn_t
nvmlDeviceGetMaxMigDeviceCount (nvmlDevice_t device, unsigned int *count)
{
    BEGIN ();
    GPU (device);
    NEED (count);
    *count = gpu->mig ? COMPUTE_SLICES : 0;
    return NVML_SUCCESS;
}

API nvmlReturn_t
nvmlDeviceGetMigDeviceHandleByIndex (nvmlDevice_t device, unsigned int index, nvmlDevice_t *mig)
{
    struct nvs_ci *ci = NULL;

    BEGIN ();
    MIG_ON (device);
    NEED (mig);
    if (index >= COMPUTE_SLICES)
        return NVML_ERROR_INVALID_ARGUMENT;
    ci = nvs_mig_device (gpu, index);
    if (ci == NULL)
        return NVML_ERROR_NOT_FOUND;
    *mig = ci->device;
    return NVML_SUCCESS;
}

API nvmlReturn_t
nvmlDeviceGetDeviceHandleFromMigDeviceHandle (nvmlDevice_t mig, nvmlDevice_t *device)
{
    BEGIN ();
    DEVICE (mig);
    NEED (device);
    if (mig->gi == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    *device = mig->gpu->device;
    return NVML_SUCCESS;
}

API nvmlReturn_t
nvmlDeviceGetAttributes_v2 (nvmlDevice_t device, struct nvml_attributes *attributes)
{
    const struct nvs_mig_profile *profile = NULL;

    BEGIN ();
    DEVICE (device);
    NEED (attributes);
    if (device->gi == NULL)
        return NVML_ERROR_NOT_SUPPORTED;
    profile = device->gi->profile;
    *attributes = (struct nvml_attributes){
        .sms = profile->sms * device->ci->slices / profile->slices,
        .copy = profile->copy,
        .decoders = profile->decoders,
        .jpeg = profile->jpeg,
        .ofa = profile->ofa,
        .gi_slices = profile->slices,
        .ci_slices = device->ci->slices,
        .memory_mib = profile->memory_mib,
    };
    return NVML_SUCCESS;
}
ALIAS (nvmlDeviceGetAttributes, nvmlDeviceGetAttributes_v2);

/* ---- GPU instances ------------------------------------------------------------------------------------ */

static nvmlReturn_t
gi_profile_v (const struct nvs_mig_profile *profile, struct nvml_gi_profile_v2 *info)
{
    struct nvml_gi_profile_v3 *newer = (void *)info;
    char name[96] = "";

    (void)snprintf (name, sizeof name, "MIG %s", profile->name);
    if (info->version == NVS_VERSIONED (*info, 2)) {
        *info = (struct nvml_gi_profile_v2){ info->version,
                                             profile->id,
                                             0,
                                             profile->slices,
                                             profile->most,
                                             profile->sms,
                                             profile->copy,
                                             profile->decoders,
                                             0,
                                             profile->jpeg,
                                             profile->ofa,
                                             profile->memory_mib,
                                             "" };
        memcpy (info->name, name, sizeof name);
        return NVML_SUCCESS;
    }
    if (info->version == NVS_VERSIONED (*newer, 3)) {
        *newer = (struct nvml_gi_profile_v3){ newer->version,
                                              profile->id,
                                              profile->slices,
                                              profile->most,
                                              profile->sms,
                                              profile->copy,
                                              profile->decoders,
                                              0,
                                              profile->jpeg,
                                              profile->ofa,
                                              profile->memory_mib,
                                              "",
                                              0 };
        memcpy (newer->name, name, sizeof name);
        return NVML_SUCCESS;
    }
    return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
}

API nvmlReturn_t
nvmlDeviceGetGpuInstanceProfileInfo (nvmlDevice_t device, unsigned int index, struct nvml_gi_profile *info)
{
    const struct nvs_mig_profile *profile = NULL;

    BEGIN ();
    MIG_GPU (device);
    NEED (info);
    if (index >= 18)
        return NVML_ERROR_INVALID_ARGUMENT;
    profile = profile_by_index (gpu, index);
    if (profile == NULL)
        return NVML_ERROR_NOT_SUPPORTED;
    *info = (struct nvml_gi_profile){
        profile->id,       0, profile->slices, profile->most, profile->sms,       profile->copy,
        profile->decoders, 0, profile->jpeg,   profile->ofa,  profile->memory_mib
    };
    return NVML_SUCCESS;
}

API nvmlReturn_t
nvmlDeviceGetGpuInstanceProfileInfoV (nvmlDevice_t device, unsigned int index, struct nvml_gi_profile_v2 *info)
{
    const struct nvs_mig_profile *profile = NULL;

    BEGIN ();
    MIG_GPU (device);
    NEED (info);
    if (index >= 18)
        return NVML_ERROR_INVALID_ARGUMENT;
    profile = profile_by_index (gpu, index);
    return profile == NULL ? NVML_ERROR_NOT_SUPPORTED : gi_profile_v (profile, info);
}

API nvmlReturn_t
nvmlDeviceGetGpuInstanceProfileInfoByIdV (nvmlDevice_t device, unsigned int id, struct nvml_gi_profile_v2 *info)
{
    const struct nvs_mig_profile *profile = NULL;

    BEGIN ();
    MIG_GPU (device);
    NEED (info);
    profile = profile_by_id (gpu, id);
    return profile == NULL ? NVML_ERROR_NOT_SUPPORTED : gi_profile_v (profile, info);
}

API nvmlReturn_t
nvmlDeviceGetGpuInstancePossiblePlacements_v2 (nvmlDevice_t device, unsigned int id, struct nvml_placement *out,
                                               unsigned int *count)
{
    const struct nvs_mig_profile *profile = NULL;
    unsigned have = 0;

    BEGIN ();
    MIG_GPU (device); /* what is possible is known whether MIG is on or not */
    NEED (count);
    profile = profile_by_id (gpu, id);
    if (profile == NULL)
        return NVML_ERROR_NOT_SUPPORTED;
    have = (unsigned)__builtin_popcount (profile->starts);
    /* Without a buffer this one answers SUCCESS and the count. */
    if (out == NULL) {
        *count = have;
        return NVML_SUCCESS;
    }
    TRY (nvs_list (count, out, have));
    for (unsigned start = 0, i = 0; start < NVS_SLICES; start++)
        if ((profile->starts & 1u << start) != 0)
            out[i++] = (struct nvml_placement){ start, profile->memory_slices };
    return NVML_SUCCESS;
}
ALIAS (nvmlDeviceGetGpuInstancePossiblePlacements, nvmlDeviceGetGpuInstancePossiblePlacements_v2);

API nvmlReturn_t
nvmlDeviceGetGpuInstanceRemainingCapacity (nvmlDevice_t device, unsigned int id, unsigned int *count)
{
    const struct nvs_mig_profile *profile = NULL;
    unsigned mask = 0, compute = 0, extensions = 0;

    BEGIN ();
    MIG_ON (device);
    NEED (count);
    profile = profile_by_id (gpu, id);
    if (profile == NULL)
        return NVML_ERROR_NOT_SUPPORTED;
    mask = in_use (gpu, &compute, &extensions);
    *count = 0;
    for (unsigned start = 0; start < NVS_SLICES; start++)
        if (fits (gpu, profile, start) && (mask & run_mask (start, profile->memory_slices)) == 0
            && compute + profile->slices <= COMPUTE_SLICES && *count < profile->most) {
            ++*count;
            mask |= run_mask (start, profile->memory_slices);
            compute += profile->slices;
        }
    return NVML_SUCCESS;
}

static nvmlReturn_t
gi_make (struct nvs_gpu *gpu, unsigned id, const struct nvml_placement *placement, nvmlGpuInstance_t *out)
{
    const struct nvs_mig_profile *profile = profile_by_id (gpu, id);
    struct nvs_gi *gi = NULL;

    if (profile == NULL)
        return NVML_ERROR_NOT_SUPPORTED;
    NEED_ADMIN ();
    if (placement == NULL)
        gi = gi_place (gpu, profile);
    else if (placement->size != profile->memory_slices)
        return NVML_ERROR_INVALID_ARGUMENT;
    else if (fits (gpu, profile, placement->start))
        gi = gi_create (gpu, profile, placement->start);
    if (gi == NULL)
        return NVML_ERROR_INSUFFICIENT_RESOURCES;
    nvs_nodes_mig (gpu);
    *out = gi;
    return NVML_SUCCESS;
}

API nvmlReturn_t
nvmlDeviceCreateGpuInstance (nvmlDevice_t device, unsigned int id, nvmlGpuInstance_t *gi)
{
    BEGIN ();
    MIG_ON (device);
    NEED (gi);
    return gi_make (gpu, id, NULL, gi);
}

API nvmlReturn_t
nvmlDeviceCreateGpuInstanceWithPlacement (nvmlDevice_t device, unsigned int id, const struct nvml_placement *placement,
                                          nvmlGpuInstance_t *gi)
{
    BEGIN ();
    MIG_ON (device);
    NEED (placement);
    NEED (gi);
    return gi_make (gpu, id, placement, gi);
}

API nvmlReturn_t
nvmlGpuInstanceDestroy (nvmlGpuInstance_t gi)
{
    BEGIN ();
    TRY (gi_check (gi));
    NEED_ADMIN ();
    for (unsigned j = 0; j < NVS_SLICES; j++)
        if (gi->cis[j] != NULL)
            return NVML_ERROR_IN_USE;
    gi_destroy (gi);
    return NVML_SUCCESS;
}

API nvmlReturn_t
nvmlDeviceGetGpuInstances (nvmlDevice_t device, unsigned int id, nvmlGpuInstance_t *out, unsigned int *count)
{
    unsigned have = 0;

    BEGIN ();
    MIG_ON (device);
    NEED (out);
    NEED (count);
    if (profile_by_id (gpu, id) == NULL)
        return NVML_ERROR_NOT_SUPPORTED;
    /* The count is only written: the caller has room for the profile's most instances. */
    for (unsigned i = 0; i < NVS_SLICES && gpu->gis[i] != NULL; i++)
        if (gpu->gis[i]->profile->id == id)
            out[have++] = gpu->gis[i];
    *count = have;
    return NVML_SUCCESS;
}

API nvmlReturn_t
nvmlDeviceGetGpuInstanceById (nvmlDevice_t device, unsigned int id, nvmlGpuInstance_t *gi)
{
    BEGIN ();
    MIG_ON (device);
    NEED (gi);
    for (unsigned i = 0; i < NVS_SLICES && gpu->gis[i] != NULL; i++)
        if (gpu->gis[i]->id == id) {
            *gi = gpu->gis[i];
            return NVML_SUCCESS;
        }
    return NVML_ERROR_NOT_FOUND;
}

API nvmlReturn_t
nvmlGpuInstanceGetInfo (nvmlGpuInstance_t gi, struct nvml_gi_info *info)
{
    BEGIN ();
    TRY (gi_check (gi));
    NEED (info);
    *info =
        (struct nvml_gi_info){ gi->gpu->device, gi->id, gi->profile->id, { gi->start, gi->profile->memory_slices } };
    return NVML_SUCCESS;
}

/* ---- compute instances -------------------------------------------------------------------------------- */

static unsigned
ci_mask (const struct nvs_gi *gi)
{
    unsigned mask = 0;

    for (unsigned j = 0; j < NVS_SLICES; j++)
        if (gi->cis[j] != NULL)
            mask |= run_mask (gi->cis[j]->start, gi->cis[j]->slices);
    return mask;
}

/* Instances of two and more slices start at multiples of their size, within the GPU instance. */
static bool
ci_fits (const struct nvs_gi *gi, unsigned slices, unsigned start, unsigned mask)
{
    return start % slices == 0 && start + slices <= gi->profile->slices && (mask & run_mask (start, slices)) == 0;
}

static nvmlReturn_t
ci_profile (const struct nvs_gi *gi, unsigned id, unsigned *slices)
{
    if (id >= 9)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (id >= CI_PROFILES || ci_slices[id] > gi->profile->slices)
        return NVML_ERROR_NOT_SUPPORTED;
    *slices = ci_slices[id];
    return NVML_SUCCESS;
}

static struct nvml_ci_profile
ci_profile_info (const struct nvs_gi *gi, unsigned id)
{
    const struct nvs_mig_profile *profile = gi->profile;

    return (struct nvml_ci_profile){ id,
                                     ci_slices[id],
                                     profile->slices / ci_slices[id],
                                     profile->sms * ci_slices[id] / profile->slices,
                                     profile->copy,
                                     profile->decoders,
                                     0,
                                     profile->jpeg,
                                     profile->ofa };
}

API nvmlReturn_t
nvmlGpuInstanceGetComputeInstanceProfileInfo (nvmlGpuInstance_t gi, unsigned int profile, unsigned int engine,
                                              struct nvml_ci_profile *info)
{
    unsigned slices = 0;

    BEGIN ();
    TRY (gi_check (gi));
    NEED (info);
    if (engine != 0)
        return NVML_ERROR_INVALID_ARGUMENT;
    TRY (ci_profile (gi, profile, &slices));
    *info = ci_profile_info (gi, profile);
    return NVML_SUCCESS;
}

API nvmlReturn_t
nvmlGpuInstanceGetComputeInstanceProfileInfoV (nvmlGpuInstance_t gi, unsigned int profile, unsigned int engine,
                                               struct nvml_ci_profile_v2 *info)
{
    struct nvml_ci_profile plain;
    unsigned slices = 0;

    BEGIN ();
    TRY (gi_check (gi));
    NEED_VERSION (info, 2);
    if (engine != 0)
        return NVML_ERROR_INVALID_ARGUMENT;
    TRY (ci_profile (gi, profile, &slices));
    plain = ci_profile_info (gi, profile);
    memcpy (&info->id, &plain, sizeof plain);
    memset (info->name, 0, sizeof info->name);
    if (slices == gi->profile->slices)
        (void)snprintf (info->name, sizeof info->name, "MIG %s", gi->profile->name);
    else
        (void)snprintf (info->name, sizeof info->name, "MIG %uc.%s", slices, gi->profile->name);
    return NVML_SUCCESS;
}

API nvmlReturn_t
nvmlGpuInstanceGetComputeInstanceRemainingCapacity (nvmlGpuInstance_t gi, unsigned int profile, unsigned int *count)
{
    unsigned slices = 0, mask = 0;

    BEGIN ();
    TRY (gi_check (gi));
    NEED (count);
    TRY (ci_profile (gi, profile, &slices));
    mask = ci_mask (gi);
    *count = 0;
    for (unsigned start = 0; start < COMPUTE_SLICES; start++)
        if (ci_fits (gi, slices, start, mask)) {
            ++*count;
            mask |= run_mask (start, slices);
        }
    return NVML_SUCCESS;
}

API nvmlReturn_t
nvmlGpuInstanceGetComputeInstancePossiblePlacements (nvmlGpuInstance_t gi, unsigned int profile,
                                                     struct nvml_placement *out, unsigned int *count)
{
    unsigned slices = 0, have = 0;

    BEGIN ();
    TRY (gi_check (gi));
    NEED (count);
    TRY (ci_profile (gi, profile, &slices));
    have = gi->profile->slices / slices;
    if (out == NULL) {
        *count = have;
        return NVML_SUCCESS;
    }
    TRY (nvs_list (count, out, have));
    for (unsigned i = 0; i < have; i++)
        out[i] = (struct nvml_placement){ i * slices, slices };
    return NVML_SUCCESS;
}

static nvmlReturn_t
ci_make (struct nvs_gi *gi, unsigned profile, const struct nvml_placement *placement, nvmlComputeInstance_t *out)
{
    unsigned slices = 0;
    unsigned mask = ci_mask (gi);

    TRY (ci_profile (gi, profile, &slices));
    NEED_ADMIN ();
    if (placement != NULL && placement->size != slices)
        return NVML_ERROR_INVALID_ARGUMENT;
    for (unsigned start = 0; start < COMPUTE_SLICES; start++) {
        if (!ci_fits (gi, slices, start, mask) || (placement != NULL && placement->start != start))
            continue;
        *out = ci_create (gi, slices, start);
        if (*out == NULL)
            return NVML_ERROR_MEMORY;
        nvs_nodes_mig (gi->gpu);
        return NVML_SUCCESS;
    }
    return NVML_ERROR_INSUFFICIENT_RESOURCES;
}

API nvmlReturn_t
nvmlGpuInstanceCreateComputeInstance (nvmlGpuInstance_t gi, unsigned int profile, nvmlComputeInstance_t *ci)
{
    BEGIN ();
    TRY (gi_check (gi));
    NEED (ci);
    return ci_make (gi, profile, NULL, ci);
}

API nvmlReturn_t
nvmlGpuInstanceCreateComputeInstanceWithPlacement (nvmlGpuInstance_t gi, unsigned int profile,
                                                   const struct nvml_placement *placement, nvmlComputeInstance_t *ci)
{
    BEGIN ();
    TRY (gi_check (gi));
    NEED (placement);
    NEED (ci);
    return ci_make (gi, profile, placement, ci);
}

API nvmlReturn_t
nvmlComputeInstanceDestroy (nvmlComputeInstance_t ci)
{
    BEGIN ();
    TRY (ci_check (ci));
    NEED_ADMIN ();
    ci_destroy (ci);
    return NVML_SUCCESS;
}

static unsigned
ci_profile_of (const struct nvs_ci *ci)
{
    unsigned id = 0;

    while (ci_slices[id] != ci->slices)
        id++;
    return id;
}

API nvmlReturn_t
nvmlGpuInstanceGetComputeInstances (nvmlGpuInstance_t gi, unsigned int profile, nvmlComputeInstance_t *out,
                                    unsigned int *count)
{
    unsigned slices = 0, have = 0;

    BEGIN ();
    TRY (gi_check (gi));
    NEED (out);
    NEED (count);
    TRY (ci_profile (gi, profile, &slices));
    for (unsigned j = 0; j < NVS_SLICES; j++)
        if (gi->cis[j] != NULL && gi->cis[j]->slices == slices)
            out[have++] = gi->cis[j];
    *count = have;
    return NVML_SUCCESS;
}

API nvmlReturn_t
nvmlGpuInstanceGetComputeInstanceById (nvmlGpuInstance_t gi, unsigned int id, nvmlComputeInstance_t *ci)
{
    BEGIN ();
    TRY (gi_check (gi));
    NEED (ci);
    if (id >= NVS_SLICES || gi->cis[id] == NULL)
        return NVML_ERROR_NOT_FOUND;
    *ci = gi->cis[id];
    return NVML_SUCCESS;
}

API nvmlReturn_t
nvmlComputeInstanceGetInfo_v2 (nvmlComputeInstance_t ci, struct nvml_ci_info *info)
{
    BEGIN ();
    TRY (ci_check (ci));
    NEED (info);
    *info = (struct nvml_ci_info){ ci->gi->gpu->device, ci->gi, ci->id, ci_profile_of (ci), { ci->start, ci->slices } };
    return NVML_SUCCESS;
}
ALIAS (nvmlComputeInstanceGetInfo, nvmlComputeInstanceGetInfo_v2);
