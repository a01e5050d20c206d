/* SPDX-License-Identifier: Apache-2.0 */
/* Reading a description. The client refuses a wrong one before the worker starts; this is for direct users. */
#include "options.h"

#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "profile.h"

struct reason {
    char *text;
    size_t size;
};

__attribute__ ((format (printf, 2, 3))) static int
refuse (const struct reason *reason, const char *format, ...)
{
    va_list args;

    va_start (args, format);
    (void)vsnprintf (reason->text, reason->size, format, args);
    va_end (args);
    return -1;
}

static int
parse_u64 (const char *key, const char *text, uint64_t *out, const struct reason *reason)
{
    uint64_t value = 0;

    if (*text == '\0')
        return refuse (reason, "%s needs a number", key);
    for (const char *p = text; *p != '\0'; p++) {
        if (*p < '0' || *p > '9' || value > (UINT64_MAX - 9) / 10)
            return refuse (reason, "%s=%s is not a number", key, text);
        value = value * 10 + (uint64_t)(*p - '0');
    }
    *out = value;
    return 0;
}

static int
parse_flag (const char *key, const char *text, bool *out, const struct reason *reason)
{
    if (strcmp (text, "0") != 0 && strcmp (text, "1") != 0)
        return refuse (reason, "%s=%s is neither 0 nor 1", key, text);
    *out = *text == '1';
    return 0;
}

static int
parse_indexes (const char *key, const char *text, struct nvs_indexes *out, const struct reason *reason)
{
    out->count = 0;
    for (const char *p = text;;) {
        char *end = NULL;
        unsigned long value = 0;

        if (*p < '0' || *p > '9')
            return refuse (reason, "%s=%s is not a list of numbers such as 0+2", key, text);
        value = strtoul (p, &end, 10);
        if (value > 255 || out->count == NVS_GPUS_MAX)
            return refuse (reason, "%s=%s has too many numbers, or one above 255", key, text);
        out->values[out->count++] = (unsigned)value;
        if (*end == '\0')
            return 0;
        if (*end != '+')
            return refuse (reason, "%s=%s is not a list of numbers such as 0+2", key, text);
        p = end + 1;
    }
}

static int
parse_text (const char *key, const char *text, char *out, size_t size, const struct reason *reason)
{
    if (*text == '\0' || strlen (text) >= size)
        return refuse (reason, "%s is empty or too long", key);
    (void)snprintf (out, size, "%s", text);
    return 0;
}

/* Only the names are looked at here; whether the layout fits the GPU is found when it is made. */
static int
parse_layout (const char *key, const char *text, char *out, size_t size, const struct reason *reason)
{
    return parse_text (key, text, out, size, reason);
}

static int
parse_version (const char *key, const char *text, char *out, size_t size, const struct reason *reason)
{
    if (strspn (text, "0123456789.") != strlen (text))
        return refuse (reason, "%s=%s is not a driver version such as 580.95.05", key, text);
    return parse_text (key, text, out, size, reason);
}

static int
parse_function (const char *key, const char *text, char *out, size_t size, const struct reason *reason)
{
    if (strncmp (text, "nvml", 4) != 0)
        return refuse (reason, "%s=%s is not the name of an NVML function", key, text);
    return parse_text (key, text, out, size, reason);
}

static int
parse_function_crash (const char *key, char *text, struct nvs_function_crash *out, const struct reason *reason)
{
    char *how = strchr (text, ':');

    if (how != NULL) {
        *how++ = '\0';
        if (strcmp (how, "segv") == 0)
            out->how = NVS_CRASH_SEGV;
        else if (strcmp (how, "abort") == 0)
            out->how = NVS_CRASH_ABORT;
        else if (strcmp (how, "exit") == 0)
            out->how = NVS_CRASH_EXIT;
        else
            return refuse (reason, "%s: %s is not segv, abort or exit", key, how);
    }
    return parse_function (key, text, out->function, sizeof out->function, reason);
}

static int
parse_symbols (const char *key, const char *text, const struct reason *reason)
{
    if (strcmp (text, "v1") != 0 && strcmp (text, "v2") != 0 && strcmp (text, "all") != 0)
        return refuse (reason, "%s=%s is not v1, v2 or all", key, text);
    return 0;
}

static int
parse_fields (const char *key, const char *text, bool *out, const struct reason *reason)
{
    if (strcmp (text, "mixed") != 0)
        return refuse (reason, "%s=%s is not mixed", key, text);
    *out = true;
    return 0;
}

#define SET_u64(key)            parse_u64 (#key, value, &options->key, reason)
#define SET_flag(key)           parse_flag (#key, value, &options->key, reason)
#define SET_indexes(key)        parse_indexes (#key, value, &options->key, reason)
#define SET_layout(key)         parse_layout (#key, value, options->key, sizeof options->key, reason)
#define SET_version(key)        parse_version (#key, value, options->key, sizeof options->key, reason)
#define SET_symbols(key)        parse_symbols (#key, value, reason)
#define SET_function(key)       parse_function (#key, value, options->key, sizeof options->key, reason)
#define SET_function_crash(key) parse_function_crash (#key, value, &options->key, reason)
#define SET_fields(key)         parse_fields (#key, value, &options->key, reason)

static int
parse_key (struct nvs_options *options, const char *key, char *value, const struct reason *reason)
{
    if (strcmp (key, "procs") == 0)
        options->has_procs = true;
    if (strcmp (key, "xid") == 0)
        options->has_xid = true;
#define X(name, kind, fallback, help) \
    if (strcmp (key, #name) == 0)     \
        return SET_##kind (name);
#include "options.def"
#undef X
    return refuse (reason, "there is no option %s", key);
}

static int
parse_profile (struct nvs_options *options, char *word, const struct reason *reason)
{
    options->count = 1;
    options->profile = nvs_profile_find (word);
    if (options->profile == NULL) {
        char *x = strrchr (word, 'x');
        char *end = NULL;
        unsigned long count = 0;

        if (x != NULL && x[1] >= '0' && x[1] <= '9') {
            count = strtoul (x + 1, &end, 10);
            if (*end != '\0' || count < 1 || count > NVS_GPUS_MAX)
                return refuse (reason, "%s: between 1 and %u GPUs", x + 1, NVS_GPUS_MAX);
            *x = '\0';
            options->count = (unsigned)count;
            options->profile = nvs_profile_find (word);
        }
    }
    if (options->profile == NULL)
        return refuse (reason, "there is no GPU model %s", word);
    return 0;
}

static int
check (const struct nvs_options *options, const struct reason *reason)
{
    const struct nvs_indexes *lists[] = { &options->visible, &options->lost };

    for (size_t l = 0; l < sizeof lists / sizeof *lists; l++)
        for (unsigned i = 0; i < lists[l]->count; i++)
            if (lists[l]->values[i] >= options->count)
                return refuse (reason, "there is no GPU %u among %u", lists[l]->values[i], options->count);
    if (options->minors.count != 0 && options->minors.count != options->count)
        return refuse (reason, "minors names %u GPUs of %u", options->minors.count, options->count);
    if (options->procs > NVS_PROCS_MAX)
        return refuse (reason, "procs is above %u", NVS_PROCS_MAX);
    if (options->mig[0] != '\0' && !options->profile->mig)
        return refuse (reason, "%s has no MIG", options->profile->key);
    return 0;
}

int
nvs_options_parse (struct nvs_options *options, const char *description, char *reason_text, unsigned long reason_size)
{
    const struct reason reason = { reason_text, reason_size };
    char copy[1024];
    char *rest = copy;
    char *word = NULL;

    if (strlen (description) >= sizeof copy)
        return refuse (&reason, "the description is too long");
    (void)snprintf (copy, sizeof copy, "%s", description);
    *options = (struct nvs_options){ .seed = 1 };
    (void)snprintf (options->driver, sizeof options->driver, "580.95.05");
    word = strsep (&rest, ",");
    if (parse_profile (options, word, &reason) != 0)
        return -1;
    while ((word = strsep (&rest, ",")) != NULL) {
        char *value = strchr (word, '=');

        if (value == NULL)
            return refuse (&reason, "%s: key=value is expected", word);
        *value++ = '\0';
        if (parse_key (options, word, value, &reason) != 0)
            return -1;
    }
    return check (options, &reason);
}
