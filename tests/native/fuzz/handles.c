/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The handle table under any sequence of operations, against a model that only remembers every token that was ever
 * given out: what it stands for, and whether it should still be alive. Tokens are also forged, at random and from real
 * ones with some bits changed: what was not given out stands for nothing.
 *
 * The bytes: the worker's generation (3), then operations of one byte and their operands. Short, so that mutations
 * reach all of them.
 */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../../csrc/worker/handles.h"

#define TOKENS_MAX 4096u /* more than the table's first size, and than its second */
#define KINDS      4u

struct given {
    uint64_t token;
    uint64_t value;
    uint32_t kind;
    bool alive;
};

struct input {
    const uint8_t *at;
    size_t left;
};

static struct given given[TOKENS_MAX];
static uint32_t given_count;
static uint32_t alive_count;

int LLVMFuzzerTestOneInput (const uint8_t *bytes, size_t size);

static void
check (bool holds, const char *what)
{
    if (holds)
        return;
    (void)fprintf (stderr, "the table and the model differ: %s\n", what);
    abort ();
}

static uint64_t
take (struct input *input, size_t count)
{
    uint64_t value = 0;

    if (count > input->left)
        count = input->left;
    memcpy (&value, input->at, count);
    input->at += count;
    input->left -= count;
    return value;
}

static struct given *
find_alive (uint64_t value, uint32_t kind)
{
    for (uint32_t i = 0; i < given_count; i++)
        if (given[i].alive && given[i].value == value && given[i].kind == kind)
            return &given[i];
    return NULL;
}

static struct given *
find_token (uint64_t token)
{
    /* Backwards: the last one with these bits is the one that counts, should a generation ever have gone round. */
    for (uint32_t i = given_count; i-- > 0;)
        if (given[i].token == token)
            return &given[i];
    return NULL;
}

static void
put (struct nvs_handles *handles, uint64_t value, uint32_t kind)
{
    struct given *before = find_alive (value, kind);
    uint64_t token = 1;

    if (before == NULL && given_count == TOKENS_MAX)
        return;
    check (nvs_handles_intern (handles, value, kind, &token) == 0, "no room");
    if (value == 0) {
        check (token == 0, "NULL got a token");
        return;
    }
    if (before != NULL) {
        check (token == before->token, "the same object got another token");
        return;
    }
    check (token >> 52 == NVS_TOKEN_TAG && (token >> 24 & 0xffu) == kind, "a token of another form");
    check (find_token (token) == NULL, "a token came to life again");
    given[given_count++] = (struct given){ token, value, kind, true };
    alive_count++;
}

/* What the table says of any 64 bits, for any kind. */
static void
resolve (struct nvs_handles *handles, uint64_t token, uint32_t kind)
{
    const struct given *known = find_token (token);
    uint64_t value = 1;
    enum nvs_status status = nvs_handles_lookup (handles, token, kind, &value);

    if (token == 0)
        check (status == NVS_STATUS_OK && value == 0, "NULL is NULL");
    else if (token >> 52 != NVS_TOKEN_TAG || (token >> 24 & 0xffu) != kind)
        check (status == NVS_STATUS_BAD_HANDLE && value == 0, "what is no token, or of another kind");
    else if (known != NULL && known->alive)
        check (status == NVS_STATUS_OK && value == known->value, "a token that is alive");
    else
        check (status == NVS_STATUS_STALE_HANDLE && value == 0, "a token that is not alive");
}

static void
retire (struct nvs_handles *handles, uint64_t token)
{
    struct given *known = find_token (token);

    nvs_handles_retire (handles, token);
    if (known != NULL && known->alive) {
        known->alive = false;
        alive_count--;
    }
}

static void
retire_all (struct nvs_handles *handles)
{
    nvs_handles_retire_all (handles);
    for (uint32_t i = 0; i < given_count; i++)
        given[i].alive = false;
    alive_count = 0;
}

/* One that was given out, or 0 if there is none. */
static uint64_t
pick (struct input *input)
{
    uint64_t number = take (input, 2);

    return given_count > 0 ? given[number % given_count].token : 0;
}

static void
step (struct nvs_handles *handles, struct input *input)
{
    const uint8_t operation = (uint8_t)take (input, 1);
    const uint32_t kind = 1 + (operation >> 4) % KINDS;
    uint64_t base;
    uint64_t token;

    switch (operation & 0xfu) {
    case 0:
    case 1:
    case 2: put (handles, take (input, 1), kind); break;
    case 3: put (handles, take (input, 8), kind); break;
    case 4: /* a whole row, so that a few bytes are enough to make the table grow */
        base = take (input, 2);
        for (uint64_t i = 0; i < 64; i++)
            put (handles, 0x7f0000000000u + (base + i) * 64, kind);
        break;
    case 5:
    case 6:
    case 7: retire (handles, pick (input)); break;
    case 8: retire (handles, take (input, 8)); break;
    case 9: retire_all (handles); break;
    case 10:
    case 11:
        token = pick (input);
        resolve (handles, token, (uint32_t)(token >> 24 & 0xffu));
        break;
    case 12: resolve (handles, pick (input), kind); break;
    case 13: resolve (handles, take (input, 8), kind); break;
    case 14: /* a real one with a byte of it changed: another slot, kind, use or generation */
        token = pick (input);
        base = take (input, 2);
        token ^= (base & 0xffu) << (8 * (base >> 8 & 7u));
        resolve (handles, token, (uint32_t)(token >> 24 & 0xffu));
        retire (handles, token);
        break;
    default: /* a forged one with the right tag */
        token = (uint64_t)NVS_TOKEN_TAG << 52 | take (input, 7) >> 4;
        resolve (handles, token, kind);
        retire (handles, token);
        break;
    }
    check (nvs_handles_count (handles) == alive_count, "how many are alive");
}

int
LLVMFuzzerTestOneInput (const uint8_t *bytes, size_t size)
{
    struct input input = { bytes, size };
    struct nvs_handles *handles = nvs_handles_new ((uint32_t)take (&input, 3));

    if (handles == NULL)
        abort ();
    given_count = 0;
    alive_count = 0;
    while (input.left > 0)
        step (handles, &input);
    for (uint32_t i = 0; i < given_count; i++)
        resolve (handles, given[i].token, given[i].kind);
    nvs_handles_free (handles);
    return 0;
}
