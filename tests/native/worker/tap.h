/* SPDX-License-Identifier: Apache-2.0 */
/* Checks that print both values, as TAP. A test program ends with `return tap_done ();`. */
#ifndef NVSANDBOX_TESTS_TAP_H
#define NVSANDBOX_TESTS_TAP_H

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int tap_number;
static int tap_failed;

static inline void
tap_result (int good, const char *file, int line, const char *what)
{
    tap_number++;
    tap_failed += !good;
    printf ("%sok %d - %s (%s:%d)\n", good ? "" : "not ", tap_number, what, file, line);
}

static inline void
tap_same_number (uint64_t got, uint64_t want, const char *file, int line, const char *what)
{
    tap_result (got == want, file, line, what);
    if (got != want)
        printf ("#   got  %" PRIu64 " (%#" PRIx64 ")\n#   want %" PRIu64 " (%#" PRIx64 ")\n", got, got, want, want);
}

/* On one line, whatever the text. */
static inline void
tap_show (const char *label, const char *text)
{
    printf ("#   %s \"", label);
    for (; *text != '\0'; text++)
        if (*text == '\n')
            printf ("\\n");
        else
            (void)putchar (*text);
    printf ("\"\n");
}

static inline void
tap_same_text (const char *got, const char *want, const char *file, int line, const char *what)
{
    tap_result (strcmp (got, want) == 0, file, line, what);
    if (strcmp (got, want) != 0) {
        tap_show ("got ", got);
        tap_show ("want", want);
    }
}

static inline void
tap_contains (const char *got, const char *part, const char *file, int line, const char *what)
{
    tap_result (strstr (got, part) != NULL, file, line, what);
    if (strstr (got, part) == NULL) {
        tap_show ("text ", got);
        tap_show ("lacks", part);
    }
}

#define SAME(got, want)      tap_same_number ((uint64_t)(got), (uint64_t)(want), __FILE__, __LINE__, #got " = " #want)
#define SAME_TEXT(got, want) tap_same_text ((got), (want), __FILE__, __LINE__, #got)
#define CONTAINS(got, part)  tap_contains ((got), (part), __FILE__, __LINE__, #got " has " #part)
#define TRUE(condition)      tap_result ((condition) != 0, __FILE__, __LINE__, #condition)
#define TRUE_FOR(condition, why) tap_result ((condition) != 0, __FILE__, __LINE__, (why))

static inline int
tap_under_valgrind (void)
{
    const char *preload = getenv ("LD_PRELOAD");

    return preload != NULL && strstr (preload, "/valgrind/") != NULL;
}

static inline int
tap_done (void)
{
    printf ("1..%d\n", tap_number);
    return tap_failed != 0;
}

#endif
