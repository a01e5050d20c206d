/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A library with NVML's name and symbols, for tests alone: every call's output is a function of every byte of its
 * input. A byte that gets lost or garbled on its way, in either direction, therefore changes a result.
 *
 * What a call's memory looks like is told beforehand, by nvmlEchoExpect() with a text of one line a call:
 *
 *     SYMBOL RESULT MODE SEED ARGUMENT ...
 *
 *     RESULT    the nvmlReturn_t to return, or s for a const char *
 *     MODE      probe: counts (u) come out as 3, as from a call that asks how much room is needed
 *               final: counts come out as 1 to 3
 *               garbage: as final, and text (c) comes out as any bytes at all
 *     ARGUMENT  v32 or v64: an integer of that width; hK: a handle of kind K; n: NULL; s: a string;
 *               p{SHAPE}: a pointer to memory of that shape
 *     SHAPE     bN: N bytes; cN: text of N bytes; u: a uint32_t that counts; hK: a handle; N: a NULL pointer;
 *               P{SHAPE}: a pointer; S: a string that the library sets where it is NULL; O: one that it always sets;
 *               *N(SHAPE): N times that
 *
 * Handles are compared by their place in a table, never by address: addresses differ between two processes, and what
 * a sandboxed caller holds is no address at all. A handle that is not of the table is an error of its own.
 */
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    KINDS = 16,
    HANDLES = 8,
    ARGUMENTS = 6,
    PROBED = 3
};
enum {
    BAD_HANDLE = 771,
    UNEXPECTED = 772,
    BAD_SHAPE = 773
};

enum mode {
    MODE_PROBE,
    MODE_FINAL,
    MODE_GARBAGE
};

/* One pass over a call's memory: first all of it is read into the hash, then all of it is written from the stream. */
struct pass {
    int writing;
    enum mode mode;
    uint64_t hash;
    uint64_t stream;
    int error;
};

/* What a handle points at is private to the library, so that following one by mistake shows as garbage. */
static struct {
    unsigned char secret[64];
} handles[KINDS][HANDLES];

static const char *const strings[] = { "", "a", "echo", "watts per fortnight", "\xc3\xa9t\xc3\xa9" };
#define STRINGS (sizeof strings / sizeof *strings)

static char expectations[4u << 20];
static const char *expected = expectations;
static char note[512];

/* Of the input of all calls since it was last asked for: what a call without output received shows in this alone. */
static uint64_t digest;

__attribute__ ((format (printf, 2, 3))) static int
complain (int code, const char *format, ...)
{
    va_list args;

    if (note[0] == '\0') {
        va_start (args, format);
        (void)vsnprintf (note, sizeof note, format, args);
        va_end (args);
    }
    return code;
}

static uint64_t
mix (uint64_t value)
{
    value += 0x9e3779b97f4a7c15u;
    value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9u;
    value = (value ^ (value >> 27)) * 0x94d049bb133111ebu;
    return value ^ (value >> 31);
}

static void
absorb (struct pass *pass, const void *bytes, size_t size)
{
    const unsigned char *at = bytes;

    for (size_t i = 0; i < size; i++)
        pass->hash = (pass->hash ^ at[i]) * 0x100000001b3u;
    pass->hash = mix (pass->hash ^ size);
}

static uint64_t
draw (struct pass *pass)
{
    pass->stream += 0x9e3779b97f4a7c15u;
    return mix (pass->stream);
}

static void
emit (struct pass *pass, unsigned char *at, size_t size)
{
    uint64_t value = 0;

    for (size_t i = 0; i < size; i++) {
        if (i % sizeof value == 0)
            value = draw (pass);
        at[i] = (unsigned char)(value >> (8 * (i % sizeof value)));
    }
}

/* Printable, of any length up to all of the field (then without a NUL), with rubbish behind its NUL as the real
 * library leaves it there. */
static void
emit_text (struct pass *pass, unsigned char *at, size_t size)
{
    size_t length = size == 0 ? 0 : draw (pass) % (size + 1);

    emit (pass, at, size);
    if (pass->mode == MODE_GARBAGE)
        return;
    for (size_t i = 0; i < length; i++)
        at[i] = (unsigned char)('!' + at[i] % 94);
    if (length < size)
        at[length] = '\0';
}

static unsigned long
number (const char **shape)
{
    char *end;
    unsigned long value = strtoul (*shape, &end, 10);

    *shape = end;
    return value;
}

/* The index of a handle in the table of its kind, 1 and up; 0 for NULL; -1 for a stranger. */
static int
identity (unsigned long kind, const void *handle)
{
    if (handle == NULL)
        return 0;
    for (int i = 0; kind < KINDS && i < HANDLES; i++)
        if (handle == &handles[kind][i])
            return i + 1;
    return -1;
}

static void
absorb_handle (struct pass *pass, unsigned long kind, const void *handle)
{
    int index = identity (kind, handle);

    if (index < 0)
        pass->error = complain (BAD_HANDLE, "handle %p is not of kind %lu", handle, kind);
    absorb (pass, &index, sizeof index);
}

static void
absorb_string (struct pass *pass, const char *string)
{
    unsigned char present = string != NULL;

    absorb (pass, &present, 1);
    if (string != NULL)
        absorb (pass, string, strlen (string) + 1);
}

static unsigned char *walk (struct pass *pass, const char **shape, unsigned char *at);

/* A pointer in memory, to a shape in braces. */
static void
walk_pointee (struct pass *pass, const char **shape, unsigned char *pointee)
{
    *shape += 1;
    if (pointee == NULL && pass->error == 0)
        pass->error = complain (BAD_SHAPE, "a pointer that was not NULL has come as NULL");
    (void)walk (pass, shape, pointee);
    if (**shape == '}')
        *shape += 1;
}

/* Reads or writes what `shape` describes, from `at` on, and returns where it ends. With `at` NULL it only parses. */
static unsigned char *
walk (struct pass *pass, const char **shape, unsigned char *at)
{
    while (**shape != '\0' && **shape != '}' && **shape != ')' && **shape != ' ' && **shape != '\n') {
        char kind = *(*shape)++;
        unsigned long size = strchr ("bch*", kind) != NULL ? number (shape) : 0;
        void *pointer = NULL;
        uint32_t count;

        if (strchr ("hPNSO", kind) != NULL && at != NULL)
            memcpy (&pointer, at, sizeof pointer);
        switch (kind) {
        case 'b':
        case 'c':
            if (at == NULL)
                break;
            if (!pass->writing)
                absorb (pass, at, size);
            else if (kind == 'c')
                emit_text (pass, at, size);
            else
                emit (pass, at, size);
            at += size;
            break;
        case 'u':
            if (at == NULL)
                break;
            if (pass->writing) {
                count = pass->mode == MODE_PROBE ? PROBED : 1 + (uint32_t)(draw (pass) % PROBED);
                memcpy (at, &count, sizeof count);
            } else {
                absorb (pass, at, sizeof count);
            }
            at += sizeof count;
            break;
        case 'h':
            if (at == NULL)
                break;
            if (pass->writing) {
                uint64_t drawn = draw (pass) % (HANDLES + 1);

                pointer = drawn == HANDLES || size >= KINDS ? NULL : &handles[size][drawn];
                memcpy (at, &pointer, sizeof pointer);
            } else {
                absorb_handle (pass, size, pointer);
            }
            at += sizeof pointer;
            break;
        case 'N':
            if (pointer != NULL)
                pass->error = complain (BAD_SHAPE, "a pointer that was NULL has come as %p", pointer);
            at = at == NULL ? NULL : at + sizeof pointer;
            break;
        case 'P':
            if (at == NULL) {
                *shape += 1;
                (void)walk (pass, shape, NULL);
                *shape += **shape == '}';
            } else {
                walk_pointee (pass, shape, pointer);
                at += sizeof pointer;
            }
            break;
        case 'S':
        case 'O':
            if (at == NULL)
                break;
            if (!pass->writing) {
                absorb_string (pass, pointer);
            } else if (pointer == NULL || kind == 'O') {
                const char *string = strings[draw (pass) % STRINGS];

                memcpy (at, &string, sizeof string);
            }
            at += sizeof pointer;
            break;
        case '*':
            if (**shape == '(') {
                const char *inner = *shape + 1;

                *shape = inner;
                (void)walk (pass, shape, NULL);
                for (unsigned long i = 0; i < size && at != NULL; i++) {
                    const char *again = inner;

                    at = walk (pass, &again, at);
                }
                *shape += **shape == ')';
                break;
            }
            __attribute__ ((fallthrough));
        default: pass->error = complain (BAD_SHAPE, "shape: %.40s", *shape - 1); return at;
        }
    }
    return at;
}

static void
walk_arguments (struct pass *pass, const char *text, const uint64_t *registers)
{
    for (int i = 0; i < ARGUMENTS && *text == ' '; i++) {
        void *pointer = (void *)(uintptr_t)registers[i];
        char kind = text[1];
        unsigned long width;

        text += 2;
        switch (kind) {
        case 'v':
            width = number (&text) / 8;
            if (!pass->writing)
                absorb (pass, &registers[i], width <= sizeof *registers ? width : sizeof *registers);
            break;
        case 'h':
            width = number (&text);
            if (!pass->writing)
                absorb_handle (pass, width, pointer);
            break;
        case 'n':
            if (pointer != NULL)
                pass->error = complain (BAD_SHAPE, "argument %d was NULL and has come as %p", i, pointer);
            break;
        case 's':
            if (!pass->writing)
                absorb_string (pass, pointer);
            break;
        case 'p': walk_pointee (pass, &text, pointer); break;
        default: pass->error = complain (BAD_SHAPE, "argument %d: %.40s", i, text - 1); return;
        }
        if (pass->error != 0)
            return;
    }
}

/* Does the register hold what an NVML function would return? Its upper half is left dirty on purpose: an enumeration
 * is 32 bits wide, and whoever looks at more of the register sees this. */
static uint64_t
dirty (int result)
{
    return 0xdeadbeefull << 32 | (uint32_t)result;
}

static uint64_t
echo (const char *symbol, const uint64_t *registers)
{
    size_t length = strlen (symbol);
    struct pass pass = { .hash = 0xcbf29ce484222325u };
    char *text;
    int result = 0;
    int returns_string;

    if (strncmp (expected, symbol, length) != 0 || expected[length] != ' ') {
        /* What pynvml itself calls at moments of its own choice. */
        if (strcmp (symbol, "nvmlErrorString") == 0)
            return (uint64_t)(uintptr_t)strings[registers[0] % STRINGS];
        if (strncmp (symbol, "nvmlInit", 8) == 0 || strcmp (symbol, "nvmlShutdown") == 0)
            return dirty (0);
        return dirty (complain (UNEXPECTED, "%s was called, expected: %.80s", symbol, expected));
    }
    text = strdup (expected + length + 1);
    if (text == NULL)
        return dirty (BAD_SHAPE);
    text[strcspn (text, "\n")] = '\0';
    expected += strcspn (expected, "\n");
    expected += *expected == '\n';

    returns_string = text[0] == 's';
    {
        char *at = text;

        if (returns_string)
            at++;
        else
            result = (int)strtol (at, &at, 10);
        at += *at == ' ';
        pass.mode = *at == 'p' ? MODE_PROBE : *at == 'f' ? MODE_FINAL : MODE_GARBAGE;
        at += strcspn (at, " ");
        absorb (&pass, symbol, length);
        pass.hash = mix (pass.hash ^ strtoull (at, &at, 10));
        walk_arguments (&pass, at, registers);
        digest = mix (digest ^ pass.hash);
        pass.writing = 1;
        pass.stream = pass.hash;
        if (pass.error == 0)
            walk_arguments (&pass, at, registers);
    }
    free (text);
    if (returns_string)
        return pass.error != 0 ? 0 : (uint64_t)(uintptr_t)strings[pass.hash % STRINGS];
    return dirty (pass.error != 0 ? pass.error : result);
}

#define EXPORT __attribute__ ((visibility ("default")))

/* Replaces what was expected so far. */
EXPORT int nvmlEchoExpect (const char *text);
int
nvmlEchoExpect (const char *text)
{
    size_t length = strlen (text);

    if (length >= sizeof expectations)
        return complain (BAD_SHAPE, "%zu bytes of expectations", length);
    memcpy (expectations, text, length + 1);
    expected = expectations;
    return 0;
}

/* The first complaint since the last call of this, and, if there was none, what has been expected in vain. */
EXPORT int nvmlEchoNote (char *buffer, unsigned int size);
int
nvmlEchoNote (char *buffer, unsigned int size)
{
    if (note[0] == '\0' && *expected != '\0')
        (void)complain (UNEXPECTED, "never called: %.80s", expected);
    (void)snprintf (buffer, size, "%s", note);
    note[0] = '\0';
    return 0;
}

EXPORT int nvmlEchoDigest (unsigned long long *value);
int
nvmlEchoDigest (unsigned long long *value)
{
    *value = digest;
    digest = 0;
    return 0;
}

EXPORT int nvmlEchoHandle (unsigned int kind, unsigned int index, void **handle);
int
nvmlEchoHandle (unsigned int kind, unsigned int index, void **handle)
{
    if (kind >= KINDS || index >= HANDLES)
        return BAD_HANDLE;
    *handle = &handles[kind][index];
    return 0;
}

EXPORT int nvmlEchoIdentity (unsigned int kind, const void *handle, int *index);
int
nvmlEchoIdentity (unsigned int kind, const void *handle, int *index)
{
    *index = identity (kind, handle);
    return 0;
}

/* bytes[i] becomes a function of every byte and of i: for memory of any size without a shape. */
EXPORT int nvmlEchoBytes (unsigned char *bytes, unsigned long long size);
int
nvmlEchoBytes (unsigned char *bytes, unsigned long long size)
{
    struct pass pass = { .hash = 0xcbf29ce484222325u };

    absorb (&pass, bytes, size);
    pass.stream = pass.hash;
    emit (&pass, bytes, size);
    return 0;
}

#define SYMBOL(name)                                                                               \
    EXPORT uint64_t name (uint64_t a, uint64_t b, uint64_t c, uint64_t d, uint64_t e, uint64_t f); \
    uint64_t name (uint64_t a, uint64_t b, uint64_t c, uint64_t d, uint64_t e, uint64_t f)         \
    {                                                                                              \
        const uint64_t registers[ARGUMENTS] = { a, b, c, d, e, f };                                \
                                                                                                   \
        return echo (#name, registers);                                                            \
    }

/* SYMBOL (nvml…) for each symbol, made by the tests from what the installed pynvml asks for. */
#include "symbols.def"
