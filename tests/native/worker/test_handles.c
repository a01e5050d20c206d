/* SPDX-License-Identifier: Apache-2.0 */
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>

#include "../../../csrc/worker/handles.h"
#include "tap.h"

#define KIND 3u

static uint64_t
intern (struct nvs_handles *handles, uint64_t value, uint32_t kind)
{
    uint64_t token;

    return nvs_handles_intern (handles, value, kind, &token) == 0 ? token : UINT64_MAX;
}

static void
test_one (void)
{
    struct nvs_handles *handles = nvs_handles_new (0xffabcdeu); /* more than 20 bits: the rest does not count */
    uint64_t value;
    uint64_t token = intern (handles, 0x5555000012340000u, KIND);
    uint64_t again;

    SAME (token, nvs_token_make (0xabcdeu, KIND, 0));
    SAME (intern (handles, 0x5555000012340000u, KIND), token);
    TRUE (intern (handles, 0x5555000012340000u, KIND + 1) != token);
    SAME (nvs_handles_count (handles), 2);
    SAME (intern (handles, 0, KIND), 0);
    SAME (nvs_handles_lookup (handles, 0, KIND, &value), NVS_STATUS_OK);
    SAME (value, 0);
    SAME (nvs_handles_lookup (handles, token, KIND, &value), NVS_STATUS_OK);
    SAME (value, 0x5555000012340000u);

    SAME (nvs_handles_lookup (handles, token, KIND + 1, &value), NVS_STATUS_BAD_HANDLE);
    SAME (nvs_handles_lookup (handles, 0x5555000012340000u, KIND, &value), NVS_STATUS_BAD_HANDLE);
    SAME (nvs_handles_lookup (handles, UINT64_MAX, KIND, &value), NVS_STATUS_BAD_HANDLE);
    SAME (nvs_handles_lookup (handles, token + (1ull << 32), KIND, &value), NVS_STATUS_STALE_HANDLE);
    SAME (nvs_handles_lookup (handles, nvs_token_make (0xabcdeu, KIND, 77), KIND, &value), NVS_STATUS_STALE_HANDLE);
    SAME (nvs_handles_lookup (handles, nvs_token_make (0xabcdeu, KIND, 0xffffffu), KIND, &value),
          NVS_STATUS_STALE_HANDLE);
    SAME (nvs_handles_lookup (handles, nvs_token_make (0xabcdeu, KIND, 1), KIND, &value), NVS_STATUS_STALE_HANDLE);
    SAME (value, 0);

    nvs_handles_retire (handles, token);
    SAME (nvs_handles_lookup (handles, token, KIND, &value), NVS_STATUS_STALE_HANDLE);
    again = intern (handles, 0x5555000012340000u, KIND);
    TRUE (again != token);
    nvs_handles_retire (handles, token); /* a second time: nothing happens */
    SAME (nvs_handles_lookup (handles, again, KIND, &value), NVS_STATUS_OK);
    SAME (nvs_handles_lookup (handles, token, KIND, &value), NVS_STATUS_STALE_HANDLE);

    /* Without a kind: goes with all, and is the same object. */
    token = intern (handles, 0x5555000012340000u, NVS_HANDLE_UNTYPED);
    TRUE (token != again);
    SAME (nvs_handles_lookup (handles, token, KIND, &value), NVS_STATUS_OK);
    SAME (value, 0x5555000012340000u);
    SAME (nvs_handles_lookup (handles, again, NVS_HANDLE_UNTYPED, &value), NVS_STATUS_OK);
    nvs_handles_retire (handles, again);
    SAME (nvs_handles_lookup (handles, token, KIND, &value), NVS_STATUS_STALE_HANDLE);
    again = intern (handles, 0x5555000012340000u, KIND);
    token = intern (handles, 0x5555000012340000u, NVS_HANDLE_UNTYPED);
    nvs_handles_retire (handles, token);
    SAME (nvs_handles_lookup (handles, again, KIND, &value), NVS_STATUS_STALE_HANDLE);

    nvs_handles_retire_all (handles);
    SAME (nvs_handles_count (handles), 0);
    SAME (nvs_handles_lookup (handles, again, KIND, &value), NVS_STATUS_STALE_HANDLE);
    nvs_handles_free (handles);
}

/* The generation of a slot goes round after 2^20 uses, and with it nothing else in the token changes. */
static void
test_wrap (void)
{
    struct nvs_handles *handles = nvs_handles_new (0xfffffu);
    uint64_t first = intern (handles, 1, 255);

    nvs_handles_retire (handles, first);
    SAME (intern (handles, 1, 255), nvs_token_make (0, 255, 0));
    nvs_handles_free (handles);
}

/* Random coming and going against a plain array. */
static void
test_model (void)
{
    enum {
        VALUES = 3000,
        ROUNDS = 200000
    };
    struct nvs_handles *handles = nvs_handles_new (1);
    static uint64_t tokens[VALUES];
    static uint64_t stale[VALUES];
    unsigned seed = 7;
    uint32_t live = 0;
    int wrong = 0;

    for (int i = 0; i < ROUNDS; i++) {
        unsigned at = (unsigned)rand_r (&seed) % VALUES;
        uint64_t value = 0x7f0000000000u + (uint64_t)at * 64;
        uint64_t got = 0;

        if (tokens[at] == 0) {
            tokens[at] = intern (handles, value, KIND);
            live++;
        } else if (rand_r (&seed) % 3 == 0) {
            nvs_handles_retire (handles, tokens[at]);
            stale[at] = tokens[at];
            tokens[at] = 0;
            live--;
        } else {
            wrong += intern (handles, value, KIND) != tokens[at];
            wrong += nvs_handles_lookup (handles, tokens[at], KIND, &got) != NVS_STATUS_OK || got != value;
        }
        if (stale[at] != 0)
            wrong += nvs_handles_lookup (handles, stale[at], KIND, &got) != NVS_STATUS_STALE_HANDLE;
    }
    SAME (wrong, 0);
    SAME (nvs_handles_count (handles), live);
    nvs_handles_free (handles);
}

static void
test_full (void)
{
    struct nvs_handles *handles = nvs_handles_new (9);
    uint64_t value;
    uint64_t token = 0;
    uint32_t made = 0;

    while (nvs_handles_intern (handles, made + 1, KIND, &token) == 0)
        made++;
    SAME (made, NVS_TOKEN_SLOTS_MAX);
    token = intern (handles, 500000, KIND); /* those that are there still are */
    SAME (nvs_handles_lookup (handles, token, KIND, &value), NVS_STATUS_OK);
    SAME (value, 500000);
    nvs_handles_retire (handles, token);
    TRUE (intern (handles, NVS_TOKEN_SLOTS_MAX + 5, KIND) != UINT64_MAX);
    SAME (nvs_handles_lookup (handles, token, KIND, &value), NVS_STATUS_STALE_HANDLE);
    nvs_handles_free (handles);
}

static void *
hammer (void *argument)
{
    struct nvs_handles *handles = argument;
    uint64_t wrong = 0;
    uint64_t value;

    for (int i = 0; i < 20000; i++) {
        uint64_t shared = 1000 + (uint64_t)i % 10;
        uint64_t own = (uint64_t)(uintptr_t)&wrong + (uint64_t)i % 100;
        uint64_t token = intern (handles, shared, KIND);

        wrong += nvs_handles_lookup (handles, token, KIND, &value) != NVS_STATUS_OK || value != shared;
        token = intern (handles, own, KIND + 1);
        wrong += nvs_handles_lookup (handles, token, KIND + 1, &value) != NVS_STATUS_OK || value != own;
        nvs_handles_retire (handles, token);
        wrong += nvs_handles_lookup (handles, token, KIND + 1, &value) != NVS_STATUS_STALE_HANDLE;
    }
    return (void *)(uintptr_t)wrong;
}

static void
test_threads (void)
{
    struct nvs_handles *handles = nvs_handles_new (5);
    pthread_t threads[4];
    void *wrong;

    for (int i = 0; i < 4; i++)
        TRUE (pthread_create (&threads[i], NULL, hammer, handles) == 0);
    for (int i = 0; i < 4; i++) {
        (void)pthread_join (threads[i], &wrong);
        SAME ((uintptr_t)wrong, 0);
    }
    SAME (nvs_handles_count (handles), 10);
    nvs_handles_free (handles);
}

int
main (void)
{
    test_one ();
    test_wrap ();
    test_model ();
    test_full ();
    test_threads ();
    return tap_done ();
}
