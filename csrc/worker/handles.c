/* SPDX-License-Identifier: Apache-2.0 */
#include "handles.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

/*
 * Two structures under one lock: the slots, which a token names directly, and an open-addressing hash from
 * (value, kind) to the slot. A token is only ever taken apart and compared, never dereferenced: whatever 64 bits a
 * caller sends, the worst that comes of it is an error.
 *
 * A reader-writer lock, since nearly every use is a look-up of something that is there, made by many threads at
 * once: readers do not put each other to sleep, as they would over a mutex.
 */

#define NO_SLOT     UINT32_MAX
#define FIRST_SLOTS 64u
#define GENERATION  0xfffffu

struct slot {
    uint64_t value;
    uint32_t uses; /* how often this slot was retired; part of the token */
    uint32_t kind; /* 0: free */
    uint32_t next; /* free: the next free slot */
};

struct nvs_handles {
    pthread_rwlock_t lock;
    uint32_t generation;
    struct slot *slots;
    uint32_t slots_used; /* slots that were ever used; those behind are untouched */
    uint32_t slots_size; /* a power of two */
    uint32_t *index;     /* slot + 1, or 0; 2 * slots_size entries, so that it is never more than half full */
    uint32_t free_first; /* first in, first out: a slot rests as long as possible before it is used again */
    uint32_t free_last;
    uint32_t live;
};

static uint32_t
hash (uint64_t value, uint32_t kind)
{
    /* The finaliser of splitmix64. Pointers differ in few bits, and those are not the lowest. */
    uint64_t x = value + (uint64_t)kind * 0x9e3779b97f4a7c15ull;

    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ x >> 27) * 0x94d049bb133111ebull;
    return (uint32_t)(x ^ x >> 31);
}

static uint32_t
home (const struct nvs_handles *handles, const struct slot *slot)
{
    return hash (slot->value, slot->kind) & (2 * handles->slots_size - 1);
}

/* The place in the index where (value, kind) is, or would be. */
static uint32_t
find (const struct nvs_handles *handles, uint64_t value, uint32_t kind)
{
    const uint32_t mask = 2 * handles->slots_size - 1;
    uint32_t at = hash (value, kind) & mask;

    while (handles->index[at] != 0) {
        const struct slot *slot = &handles->slots[handles->index[at] - 1];

        if (slot->value == value && slot->kind == kind)
            break;
        at = (at + 1) & mask;
    }
    return at;
}

static uint64_t
token_of (const struct nvs_handles *handles, uint32_t number)
{
    const struct slot *slot = &handles->slots[number];

    return nvs_token_make (handles->generation + slot->uses, slot->kind, number);
}

struct nvs_handles *
nvs_handles_new (uint32_t generation)
{
    struct nvs_handles *handles = calloc (1, sizeof *handles);

    if (handles == NULL)
        return NULL;
    handles->slots = calloc (FIRST_SLOTS, sizeof *handles->slots);
    handles->index = calloc (2 * FIRST_SLOTS, sizeof *handles->index);
    if (handles->slots == NULL || handles->index == NULL || pthread_rwlock_init (&handles->lock, NULL) != 0) {
        free (handles->slots);
        free (handles->index);
        free (handles);
        return NULL;
    }
    handles->slots_size = FIRST_SLOTS;
    handles->generation = generation & GENERATION;
    handles->free_first = NO_SLOT;
    handles->free_last = NO_SLOT;
    return handles;
}

void
nvs_handles_free (struct nvs_handles *handles)
{
    if (handles == NULL)
        return;
    (void)pthread_rwlock_destroy (&handles->lock);
    free (handles->slots);
    free (handles->index);
    free (handles);
}

static int
grow (struct nvs_handles *handles)
{
    const uint32_t size = 2 * handles->slots_size;
    struct slot *slots;
    uint32_t *index;

    if (handles->slots_size >= NVS_TOKEN_SLOTS_MAX)
        return -1;
    index = calloc (2 * (size_t)size, sizeof *index);
    if (index == NULL)
        return -1;
    slots = realloc (handles->slots, size * sizeof *slots);
    if (slots == NULL) {
        free (index);
        return -1;
    }
    memset (slots + handles->slots_size, 0, (size - handles->slots_size) * sizeof *slots);
    free (handles->index);
    handles->slots = slots;
    handles->index = index;
    handles->slots_size = size;
    for (uint32_t i = 0; i < handles->slots_used; i++)
        if (slots[i].kind != 0)
            index[find (handles, slots[i].value, slots[i].kind)] = i + 1;
    return 0;
}

/* A free slot, or NO_SLOT. */
static uint32_t
take_slot (struct nvs_handles *handles)
{
    uint32_t number = handles->free_first;

    if (number != NO_SLOT) {
        handles->free_first = handles->slots[number].next;
        if (handles->free_first == NO_SLOT)
            handles->free_last = NO_SLOT;
        return number;
    }
    if (handles->slots_used == handles->slots_size && grow (handles) < 0)
        return NO_SLOT;
    return handles->slots_used++;
}

static void
free_slot (struct nvs_handles *handles, uint32_t number)
{
    struct slot *slot = &handles->slots[number];

    slot->uses++;
    slot->kind = 0;
    slot->value = 0;
    slot->next = NO_SLOT;
    if (handles->free_last == NO_SLOT)
        handles->free_first = number;
    else
        handles->slots[handles->free_last].next = number;
    handles->free_last = number;
    handles->live--;
}

/* Takes one entry out of the index and moves those behind it up, so that no tombstones gather over months of
 * samples allocated and freed. */
static void
unindex (struct nvs_handles *handles, uint32_t hole)
{
    const uint32_t mask = 2 * handles->slots_size - 1;
    uint32_t at = hole;

    for (;;) {
        uint32_t want;

        at = (at + 1) & mask;
        if (handles->index[at] == 0)
            break;
        want = home (handles, &handles->slots[handles->index[at] - 1]);
        /* It may move only if its home is not between the hole (exclusive) and where it is (inclusive). */
        if (((at - want) & mask) >= ((at - hole) & mask)) {
            handles->index[hole] = handles->index[at];
            hole = at;
        }
    }
    handles->index[hole] = 0;
}

int
nvs_handles_intern (struct nvs_handles *handles, uint64_t value, uint32_t kind, uint64_t *token)
{
    uint32_t number;
    uint32_t entry;

    *token = 0;
    if (value == 0)
        return 0;

    (void)pthread_rwlock_rdlock (&handles->lock);
    entry = handles->index[find (handles, value, kind)];
    if (entry != 0)
        *token = token_of (handles, entry - 1);
    (void)pthread_rwlock_unlock (&handles->lock);
    if (entry != 0)
        return 0;

    (void)pthread_rwlock_wrlock (&handles->lock);
    entry = handles->index[find (handles, value, kind)]; /* another thread may have come first */
    if (entry == 0) {
        number = take_slot (handles);
        if (number == NO_SLOT) {
            (void)pthread_rwlock_unlock (&handles->lock);
            return -1;
        }
        handles->slots[number].value = value;
        handles->slots[number].kind = kind;
        handles->live++;
        entry = number + 1;
        handles->index[find (handles, value, kind)] = entry; /* take_slot may have made a new index */
    }
    *token = token_of (handles, entry - 1);
    (void)pthread_rwlock_unlock (&handles->lock);
    return 0;
}

/* Under the lock: the slot that a token names, if the token is alive. */
static bool
alive (const struct nvs_handles *handles, uint64_t token, uint32_t *number)
{
    const struct slot *slot;

    *number = (uint32_t)(token & 0xffffffu);
    if (*number >= handles->slots_used)
        return false;
    slot = &handles->slots[*number];
    return slot->kind != 0 && token == nvs_token_make (handles->generation + slot->uses, slot->kind, *number);
}

enum nvs_status
nvs_handles_lookup (struct nvs_handles *handles, uint64_t token, uint32_t kind, uint64_t *value)
{
    enum nvs_status status = NVS_STATUS_STALE_HANDLE;
    uint32_t number;

    *value = 0;
    if (token == 0)
        return NVS_STATUS_OK;
    if (!nvs_token_is (token)
        || (nvs_token_kind (token) != kind && kind != NVS_HANDLE_UNTYPED
            && nvs_token_kind (token) != NVS_HANDLE_UNTYPED))
        return NVS_STATUS_BAD_HANDLE;

    (void)pthread_rwlock_rdlock (&handles->lock);
    if (alive (handles, token, &number)) {
        *value = handles->slots[number].value;
        status = NVS_STATUS_OK;
    }
    (void)pthread_rwlock_unlock (&handles->lock);
    return status;
}

/* Under the lock. */
static void
retire_slot (struct nvs_handles *handles, uint32_t number)
{
    unindex (handles, find (handles, handles->slots[number].value, handles->slots[number].kind));
    free_slot (handles, number);
}

void
nvs_handles_retire (struct nvs_handles *handles, uint64_t token)
{
    uint32_t number;

    (void)pthread_rwlock_wrlock (&handles->lock);
    if (alive (handles, token, &number)) {
        const struct slot gone = handles->slots[number];

        retire_slot (handles, number);
        /* The same object may have a token of its kind and one without. */
        for (uint32_t i = 0; i < handles->slots_used; i++)
            if (handles->slots[i].kind != 0 && handles->slots[i].value == gone.value
                && (gone.kind == NVS_HANDLE_UNTYPED || handles->slots[i].kind == NVS_HANDLE_UNTYPED))
                retire_slot (handles, i);
    }
    (void)pthread_rwlock_unlock (&handles->lock);
}

void
nvs_handles_retire_all (struct nvs_handles *handles)
{
    (void)pthread_rwlock_wrlock (&handles->lock);
    memset (handles->index, 0, 2 * (size_t)handles->slots_size * sizeof *handles->index);
    for (uint32_t i = 0; i < handles->slots_used; i++)
        if (handles->slots[i].kind != 0)
            free_slot (handles, i);
    (void)pthread_rwlock_unlock (&handles->lock);
}

uint32_t
nvs_handles_count (struct nvs_handles *handles)
{
    uint32_t live;

    (void)pthread_rwlock_rdlock (&handles->lock);
    live = handles->live;
    (void)pthread_rwlock_unlock (&handles->lock);
    return live;
}
