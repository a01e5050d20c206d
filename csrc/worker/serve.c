/* SPDX-License-Identifier: Apache-2.0 */
#include "serve.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FUNCTIONS_MAX 4096u

/* What a call means for the balance of initialisations, beyond being called. */
enum role {
    ROLE_ORDINARY,
    ROLE_INIT,
    ROLE_SHUTDOWN,
};

/* Every by-value argument in NVML's interface is an integer or a pointer, and no function takes more than six: on
 * x86-64 and aarch64 alike those are six registers, and a function that takes fewer does not see the rest. */
typedef uint64_t function (uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t);

struct entry {
    char name[NVS_NAME_MAX];
    function *call;
    enum role role;
};

struct nvs_serve {
    struct nvs_library *lib;
    struct nvs_handles *handles;
    pthread_mutex_t lock; /* for adding to the table; reading needs none, for entries never change */
    _Atomic uint32_t count;
    struct entry *entries; /* from 1 on: an index of 0 is a request that nobody filled in */
};

struct nvs_serve *
nvs_serve_new (struct nvs_library *lib, uint32_t generation)
{
    struct nvs_serve *serve = calloc (1, sizeof *serve);

    if (serve == NULL)
        return NULL;
    serve->lib = lib;
    serve->handles = nvs_handles_new (generation);
    /* Half a megabyte of zeros that costs what is used. It never moves, so that calls can read it without a lock. */
    serve->entries = calloc (FUNCTIONS_MAX + 1, sizeof *serve->entries);
    if (serve->handles == NULL || serve->entries == NULL || pthread_mutex_init (&serve->lock, NULL) != 0) {
        nvs_handles_free (serve->handles);
        free (serve->entries);
        free (serve);
        return NULL;
    }
    return serve;
}

void
nvs_serve_free (struct nvs_serve *serve)
{
    if (serve == NULL)
        return;
    (void)pthread_mutex_destroy (&serve->lock);
    nvs_handles_free (serve->handles);
    free (serve->entries);
    free (serve);
}

static enum role
role_of (const char *name)
{
    if (strcmp (name, "nvmlInit") == 0 || strcmp (name, "nvmlInit_v2") == 0 || strcmp (name, "nvmlInitWithFlags") == 0)
        return ROLE_INIT;
    return strcmp (name, "nvmlShutdown") == 0 ? ROLE_SHUTDOWN : ROLE_ORDINARY;
}

/* Under the lock. */
static enum nvs_status
find_or_add (struct nvs_serve *serve, const char *name, uint32_t *index)
{
    uint32_t count = atomic_load_explicit (&serve->count, memory_order_relaxed);
    union {
        void *address;
        function *call;
    } symbol;
    struct entry *entry;

    /* A few hundred names at most, each asked for once in a caller's life. */
    for (uint32_t i = 1; i <= count; i++)
        if (strcmp (serve->entries[i].name, name) == 0) {
            *index = i;
            return NVS_STATUS_OK;
        }
    symbol.address = nvs_library_symbol (serve->lib, name);
    if (symbol.address == NULL)
        return NVS_STATUS_NO_SYMBOL;
    if (count == FUNCTIONS_MAX)
        return NVS_STATUS_NO_MEMORY;
    entry = &serve->entries[count + 1];
    (void)snprintf (entry->name, sizeof entry->name, "%s", name);
    entry->call = symbol.call;
    entry->role = role_of (name);
    atomic_store_explicit (&serve->count, count + 1, memory_order_release);
    *index = count + 1;
    return NVS_STATUS_OK;
}

static enum nvs_status
resolve (struct nvs_serve *serve, const struct nvs_call *call, uint32_t *index)
{
    const struct nvs_request *request = call->request;
    const char *name = (const char *)call->data;
    enum nvs_status status;

    if (request->args_count != 0 || request->relocs_count != 0 || request->data_len > NVS_NAME_MAX
        || memchr (name, '\0', request->data_len) == NULL)
        return NVS_STATUS_BAD_FRAME;
    (void)pthread_mutex_lock (&serve->lock);
    status = find_or_add (serve, name, index);
    (void)pthread_mutex_unlock (&serve->lock);
    return status;
}

/* The library counts too, and at the end wants as many nvmlShutdown as are missing. After the last one its handles
 * mean nothing any more, and some libraries crash on them. */
static void
keep_balance (struct nvs_serve *serve, enum role role, uint64_t result)
{
    if (role == ROLE_ORDINARY || (uint32_t)result != 0)
        return;
    if (role == ROLE_INIT)
        nvs_library_note_init (serve->lib);
    else if (nvs_library_note_shutdown (serve->lib) == 0)
        nvs_handles_retire_all (serve->handles);
}

void
nvs_serve_frame (struct nvs_serve *serve, struct nvs_buffers *buffers, uint32_t length, uint32_t capacity,
                 struct nvs_answer *answer)
{
    struct nvs_reply *reply = &answer->reply;
    const struct entry *entry;
    const uint64_t *r;
    const unsigned char *part = NULL;
    struct nvs_call call;
    uint64_t result;
    uint32_t index;

    memset (answer, 0, sizeof *answer);
    reply->status = nvs_frame_decode (buffers, length, serve->handles, &call, &reply->index);
    if (reply->status != NVS_STATUS_OK)
        return;

    if (call.request->op == NVS_OP_RESOLVE) {
        reply->status = resolve (serve, &call, &index);
        if (reply->status != NVS_STATUS_OK)
            return;
        reply->result = index;
        reply->data_len = call.request->data_len;
        answer->data = call.data;
        return;
    }

    if (call.request->op == NVS_OP_FETCH) {
        reply->status = nvs_frame_fetch (buffers, &call, capacity, reply, &part);
        answer->data = part;
        return;
    }
    nvs_buffers_forget_reply (buffers);

    index = call.request->function;
    if (index == 0 || index > atomic_load_explicit (&serve->count, memory_order_acquire)) {
        reply->status = NVS_STATUS_BAD_FRAME;
        return;
    }
    entry = &serve->entries[index];
    r = call.registers;
    result = entry->call (r[0], r[1], r[2], r[3], r[4], r[5]);
    keep_balance (serve, entry->role, result);
    nvs_frame_encode (buffers, serve->handles, &call, result, capacity, reply);
    answer->data = call.data;
    answer->strings = buffers->strings;
}
