/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A program in the manner of nvidia-smi, reduced to the least: loads NVML, asks one thing, prints it as JSON, ends.
 *
 *     nvml-query LIBRARY temperature|name|memory|processes|fields INDEX
 *     nvml-query LIBRARY private INDEX   asks all of them, and prints how many KiB of memory that are this process's
 *                                        alone it has, before it loads the library and at the end
 */
#include <dlfcn.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../csrc/sim/nvml_abi.h"

#define FIELDS 50

static void *library;
static nvmlDevice_t device;

__attribute__ ((noreturn)) static void
give_up (const char *what, int code)
{
    (void)fprintf (stderr, "nvml-query: %s: %d\n", what, code);
    exit (1);
}

static void *
symbol (const char *name)
{
    void *found = dlsym (library, name);

    if (found == NULL)
        give_up (name, NVML_ERROR_NOT_FOUND);
    return found;
}

static void
check (const char *what, int code)
{
    if (code != NVML_SUCCESS)
        give_up (what, code);
}

/* Without stdio's buffers, which would count. */
static long
private_kib (void)
{
    static char text[4096];
    long sum = 0;
    FILE *file = fopen ("/proc/self/smaps_rollup", "re");

    if (file == NULL)
        give_up ("smaps_rollup", 0);
    while (fgets (text, sizeof text, file) != NULL)
        if (strncmp (text, "Private_Clean:", 14) == 0 || strncmp (text, "Private_Dirty:", 14) == 0)
            sum += strtol (text + 14, NULL, 10);
    (void)fclose (file);
    return sum;
}

static void
temperature (bool print)
{
    unsigned int value = 0;
    int (*get) (nvmlDevice_t, int, unsigned int *) = symbol ("nvmlDeviceGetTemperature");

    check ("nvmlDeviceGetTemperature", get (device, 0, &value));
    if (print)
        (void)printf ("%u\n", value);
}

static void
name (bool print)
{
    char text[96];
    int (*get) (nvmlDevice_t, char *, unsigned int) = symbol ("nvmlDeviceGetName");

    check ("nvmlDeviceGetName", get (device, text, sizeof text));
    if (print)
        (void)printf ("\"%s\"\n", text);
}

static void
memory (bool print)
{
    struct nvml_memory_v2 info = { .version = NVS_VERSIONED (struct nvml_memory_v2, 2) };
    int (*get) (nvmlDevice_t, struct nvml_memory_v2 *) = symbol ("nvmlDeviceGetMemoryInfo_v2");

    check ("nvmlDeviceGetMemoryInfo_v2", get (device, &info));
    if (print)
        (void)printf ("[%llu, %llu, %llu, %llu]\n", (unsigned long long)info.total, (unsigned long long)info.reserved,
                      (unsigned long long)info.free, (unsigned long long)info.used);
}

static void
processes (bool print)
{
    unsigned int count = 0;
    struct nvml_process *list = NULL;
    int (*get) (nvmlDevice_t, unsigned int *, struct nvml_process *) =
        symbol ("nvmlDeviceGetComputeRunningProcesses_v3");
    int code = get (device, &count, NULL);

    if (code == NVML_ERROR_INSUFFICIENT_SIZE) {
        count = count * 2 + 5;
        list = calloc (count, sizeof *list);
        if (list == NULL)
            give_up ("calloc", 0);
        code = get (device, &count, list);
    }
    check ("nvmlDeviceGetComputeRunningProcesses_v3", code);
    if (print) {
        (void)fputs ("[", stdout);
        for (unsigned int i = 0; list != NULL && i < count; i++)
            (void)printf ("%s[%u, %llu]", i == 0 ? "" : ", ", list[i].pid, (unsigned long long)list[i].memory);
        (void)fputs ("]\n", stdout);
    }
    free (list);
}

/* The fields 1 to 50; those that this GPU lacks are null. */
static void
fields (bool print)
{
    struct nvml_field_value values[FIELDS] = { 0 };
    int (*get) (nvmlDevice_t, int, struct nvml_field_value *) = symbol ("nvmlDeviceGetFieldValues");

    for (uint32_t i = 0; i < FIELDS; i++)
        values[i].field = i + 1;
    check ("nvmlDeviceGetFieldValues", get (device, FIELDS, values));
    for (int i = 0; print && i < FIELDS; i++) {
        (void)fputs (i == 0 ? "[" : ", ", stdout);
        if (values[i].result == NVML_SUCCESS)
            (void)printf ("[%u, %llu]", values[i].field, (unsigned long long)values[i].value.ull);
        else
            (void)printf ("[%u, null]", values[i].field);
    }
    if (print)
        (void)fputs ("]\n", stdout);
}

static const struct question {
    const char *name;
    void (*ask) (bool print);
} questions[] = {
    { "temperature", temperature }, { "name", name },     { "memory", memory },
    { "processes", processes },     { "fields", fields },
};

int
main (int argc, char **argv)
{
    bool all = argc == 4 && strcmp (argv[2], "private") == 0, asked = false;
    long before = 0;
    int (*init) (void);
    int (*by_index) (unsigned int, nvmlDevice_t *);
    int (*shutdown) (void);

    if (argc != 4)
        give_up ("usage: nvml-query LIBRARY WHAT INDEX", argc);
    if (all) {
        (void)private_kib (); /* once for what reading it needs */
        before = private_kib ();
    }
    library = dlopen (argv[1], RTLD_NOW);
    if (library == NULL)
        give_up (dlerror (), 0);
    init = symbol ("nvmlInit_v2");
    by_index = symbol ("nvmlDeviceGetHandleByIndex_v2");
    shutdown = symbol ("nvmlShutdown");
    check ("nvmlInit_v2", init ());
    check ("nvmlDeviceGetHandleByIndex_v2", by_index ((unsigned int)strtoul (argv[3], NULL, 10), &device));
    for (size_t i = 0; i < sizeof questions / sizeof *questions; i++)
        if (all || strcmp (argv[2], questions[i].name) == 0) {
            questions[i].ask (!all);
            asked = true;
        }
    if (!asked)
        give_up ("no such question", argc);
    if (all) {
        long after = private_kib ();

        (void)printf ("[%ld, %ld]\n", before, after);
    }
    check ("nvmlShutdown", shutdown ());
    return 0;
}
