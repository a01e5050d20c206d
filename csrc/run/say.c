/* SPDX-License-Identifier: Apache-2.0 */
#include "say.h"

#include <stdio.h>
#include <string.h>

#include "steps.h"

/* Errors of the shared code speak to Python's callers; here the step is asked for by an option. */
static void
as_option (char *text)
{
    static const char python[] = "isolation=\"guard\"";
    static const char option[] = "--guard";
    char *found = strstr (text, python);

    if (found == NULL)
        return;
    memcpy (found, option, strlen (option));
    memmove (found + strlen (option), found + strlen (python), strlen (found + strlen (python)) + 1);
}

void
nvs_say_text (const struct nvs_error *error, char *text, size_t size)
{
    const char *path = error->path;
    char reason[128] = "";

    if (error->err != 0)
        (void)snprintf (reason, sizeof reason, ": %s (errno %d)", strerror (error->err), error->err);
    (void)snprintf (text, size, "%s: %s%s%s%s%s", nvs_step_name ((enum nvs_step)error->step), error->detail,
                    path[0] != '\0' ? " [" : "", path, path[0] != '\0' ? "]" : "", reason);
    as_option (text);
}

/* A string of JSON. Paths can hold any byte: those above ASCII are written as they are if they are UTF-8 elsewhere, and
 * nothing here can tell, so they become escapes of Latin-1, which is always valid. */
static void
put_json (const char *text)
{
    (void)putc ('"', stderr);
    for (const unsigned char *c = (const unsigned char *)text; *c != '\0'; c++) {
        if (*c == '"' || *c == '\\')
            (void)fprintf (stderr, "\\%c", *c);
        else if (*c < 0x20 || *c >= 0x7f)
            (void)fprintf (stderr, "\\u%04x", *c);
        else
            (void)putc (*c, stderr);
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
