/* SPDX-License-Identifier: Apache-2.0 */
#include "say.h"

#include <stdio.h>
#include <string.h>

#include "error.h"
#include "steps.h"

void
nvs_say_text (const struct nvs_error *error, char *text, size_t size)
{
    const char *path = error->path;
    char reason[128] = "";
    int wanted;

    if (error->err != 0)
        (void)snprintf (reason, sizeof reason, ": %s (errno %d)", strerror (error->err), error->err);
    wanted = snprintf (text, size, "%s: %s%s%s%s%s", nvs_step_name ((enum nvs_step)error->step), error->detail,
                       path[0] != '\0' ? " [" : "", path, path[0] != '\0' ? "]" : "", reason);
    nvs_mark_cut (text, size, wanted);
}

/* The length of the character of UTF-8 at `c`, 0 where there is none: not the longer forms of what has a shorter one, no
 * surrogates, nothing beyond U+10FFFF. `c` ends with a NUL, which is no continuation. */
static size_t
utf8_length (const unsigned char *c)
{
    const unsigned char least = c[0] == 0xe0 ? 0xa0 : c[0] == 0xf0 ? 0x90 : 0x80;
    const unsigned char most = c[0] == 0xed ? 0x9f : c[0] == 0xf4 ? 0x8f : 0xbf;
    size_t length = c[0] < 0x80 ? 1 : c[0] < 0xc2 ? 0 : c[0] < 0xe0 ? 2 : c[0] < 0xf0 ? 3 : c[0] < 0xf5 ? 4 : 0;

    if (length > 1 && (c[1] < least || c[1] > most))
        return 0;
    for (size_t i = 2; i < length; i++)
        if ((c[i] & 0xc0) != 0x80)
            return 0;
    return length;
}

/* A string of JSON. Paths can hold any bytes: each that is not UTF-8 becomes U+FFFD, as everywhere in this project. */
static void
put_json (const char *text)
{
    const unsigned char *c = (const unsigned char *)text;

    (void)putc ('"', stderr);
    while (*c != '\0') {
        size_t length = utf8_length (c);

        if (length == 0)
            (void)fputs ("\\ufffd", stderr);
        else if (*c == '"' || *c == '\\')
            (void)fprintf (stderr, "\\%c", *c);
        else if (*c < 0x20 || *c == 0x7f)
            (void)fprintf (stderr, "\\u%04x", *c);
        else
            (void)fwrite (c, 1, length, stderr);
        c += length > 0 ? length : 1;
    }
    (void)putc ('"', stderr);
}

void
nvs_say (const char *text, const char *type, int exit_status, bool json)
{
    if (!json) {
        (void)fprintf (stderr, "nvsandbox: %s\n", text);
        return;
    }
    (void)fprintf (stderr, "{\"error\": {\"type\": \"%s\", \"nvml_code\": null, \"message\": ", type);
    put_json (text);
    (void)fprintf (stderr, ", \"exit_code\": %d}}\n", exit_status);
}
