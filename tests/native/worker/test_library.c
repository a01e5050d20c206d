/* SPDX-License-Identifier: Apache-2.0 */
/* Arguments: the fake NVML; a library that is not NVML. */
#include <dlfcn.h>
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../../../csrc/worker/library.h"
#include "tap.h"

static char folder[] = "/tmp/nvsandbox-library-XXXXXX";
static char tried[32768];
static struct nvs_error error;

static char *
in_folder (const char *name)
{
    static char paths[16][128];
    static int next;
    char *path = paths[next++ % 16];

    (void)snprintf (path, sizeof paths[0], "%s/%s", folder, name);
    return path;
}

/* Copies the first `size` bytes, with one byte changed, or none at -1. */
static void
copy (const char *from, const char *to, long size, int at, unsigned char byte)
{
    FILE *in = fopen (from, "rb");
    FILE *out = fopen (to, "wb");
    int c;

    if (in == NULL || out == NULL)
        exit (99);
    for (long i = 0; i < size && (c = getc (in)) != EOF; i++)
        (void)putc (i == at ? byte : c, out);
    (void)fclose (in);
    (void)fclose (out);
}

static int
load (struct nvs_library *lib, const char *first, const char *second)
{
    const char *candidates[2] = { first, second };

    memset (lib, 0, sizeof *lib);
    memset (&error, 0, sizeof error);
    return nvs_library_load (lib, candidates, second != NULL ? 2 : first != NULL ? 1 : 0, tried, sizeof tried, &error);
}

static void
refused (const char *path, int err, const char *reason)
{
    struct nvs_library lib;

    TRUE_FOR (load (&lib, path, NULL) == -1, reason);
    SAME (error.step, NVS_STEP_LIBRARY);
    SAME (error.err, err);
    SAME_TEXT (error.path, path);
    CONTAINS (tried, path);
    CONTAINS (tried, reason);
}

static void
test_bad_files (const char *fake, const char *other)
{
    char *path;
    struct stat st;

    if (stat (fake, &st) < 0)
        exit (99);
    refused (in_folder ("absent.so"), ENOENT, "No such file");
    refused (folder, EISDIR, "not a regular file");
    path = in_folder ("fifo.so");
    (void)mkfifo (path, 0600);
    refused (path, ENOEXEC, "not a regular file");
    path = in_folder ("empty.so");
    copy (fake, path, 0, -1, 0);
    refused (path, ENOEXEC, "no ELF header");
    path = in_folder ("short.so");
    copy (fake, path, 40, -1, 0);
    refused (path, ENOEXEC, "truncated");
    path = in_folder ("half.so");
    copy (fake, path, st.st_size / 2, -1, 0);
    refused (path, ENOEXEC, "truncated");
    path = in_folder ("byte.so");
    copy (fake, path, st.st_size - 1, -1, 0);
    refused (path, ENOEXEC, "truncated");
    path = in_folder ("class.so");
    copy (fake, path, st.st_size, EI_CLASS, ELFCLASS32);
    refused (path, ENOEXEC, "32-bit");
    path = in_folder ("order.so");
    copy (fake, path, st.st_size, EI_DATA, ELFDATA2MSB);
    refused (path, ENOEXEC, "byte order");
    path = in_folder ("machine.so");
    copy (fake, path, st.st_size, (int)offsetof (Elf64_Ehdr, e_machine), EM_PPC64);
    refused (path, ENOEXEC, "is for POWER");
    path = in_folder ("type.so");
    copy (fake, path, st.st_size, (int)offsetof (Elf64_Ehdr, e_type), ET_EXEC);
    refused (path, ENOEXEC, "not a shared library");
    refused (other, ELIBBAD, "not NVML");
    path = in_folder ("alone.so"); /* without what it needs beside it */
    copy (fake, path, st.st_size, -1, 0);
    refused (path, ELIBACC, "the loader refuses it: libother");
}

static void
test_stubs (const char *fake, const char *other)
{
    struct nvs_library lib;
    char *stub = in_folder ("stubs/libnvidia-ml.so.1");
    char *link = in_folder ("libnvidia-ml.so");

    copy (other, stub, 1 << 30, -1, 0); /* what is in it does not matter */
    SAME (symlink ("stubs/libnvidia-ml.so.1", link), 0);
    refused (stub, ENOENT, "stub");
    refused (link, ENOENT, "stub");
    /* By its name: the loader finds it there, and it is refused all the same. The environment is read at the program's
     * start, see main (). */
    refused ("libnvidia-ml.so.1", ENOENT, "stub");
    SAME (load (&lib, stub, fake), 0);
    SAME_TEXT (lib.path, fake);
    CONTAINS (tried, ": loaded\n");
    CONTAINS (tried, "stubs/libnvidia-ml.so.1: skipped");
}

static void
test_most_telling (const char *other)
{
    struct nvs_library lib;

    SAME (load (&lib, "/nowhere/libnvidia-ml.so.1", "/nowhere/else/libnvidia-ml.so.1"), -1);
    SAME (error.err, ENOENT);
    CONTAINS (error.detail, "in none of the 2 places");
    CONTAINS (tried, "/nowhere/libnvidia-ml.so.1: No such file or directory\n/nowhere/else/");
    SAME (load (&lib, other, "/nowhere/libnvidia-ml.so.1"), -1);
    SAME_TEXT (error.path, other);
    CONTAINS (error.detail, "not NVML");
    SAME (load (&lib, NULL, NULL), -1);
    SAME (error.step, NVS_STEP_LIBRARY);
    SAME (load (&lib, "libnvsandbox-there-is-none.so.1", NULL), -1);
    SAME (error.err, ENOENT);
    CONTAINS (tried, "the loader does not find it");
}

static void
test_tried_is_bounded (void)
{
    const char *candidates[] = { "/nowhere/first.so", "/nowhere/second.so" };
    struct nvs_library lib = { 0 };
    char little[60 + 32]; /* 32 for what is left out */

    SAME (nvs_library_load (&lib, candidates, 2, little, sizeof little, &error), -1);
    SAME_TEXT (little, "/nowhere/first.so: No such file or directory\nand 1 more\n");
}

static void
test_good (const char *fake)
{
    struct nvs_library lib;
    int32_t result = -1;
    int (*inits) (void);
    void *address;

    SAME (load (&lib, "/nowhere/libnvidia-ml.so.1", fake), 0);
    SAME_TEXT (lib.path, fake);
    TRUE (nvs_library_symbol (&lib, "nvmlErrorString") != NULL);
    TRUE (nvs_library_symbol (&lib, "nvmlNoSuchFunction") == NULL);
    TRUE (nvs_library_symbol (&lib, "system") == NULL);
    TRUE (dlsym (lib.handle, "nvmlOnlyElsewhere") != NULL);
    TRUE (nvs_library_symbol (&lib, "nvmlOnlyElsewhere") == NULL);
    TRUE (nvs_library_symbol (&lib, "nvmlErrorString@x") == NULL);
    TRUE (nvs_library_symbol (&lib, "nvml") == NULL);
    TRUE (nvs_library_symbol (&lib, "") == NULL);
    address = nvs_library_symbol (&lib, "nvmlFakeInits");
    memcpy (&inits, &address, sizeof inits);

    SAME (nvs_library_init (&lib, &result, &error), 0);
    SAME (result, 0);
    nvs_library_note_init (&lib);
    SAME (nvs_library_note_shutdown (&lib), 1);
    SAME (nvs_library_init (&lib, &result, &error), 0);
    SAME (inits (), 2);
    SAME (lib.inits, 2);
    nvs_library_shutdown (&lib);
    SAME (inits (), 0);
    nvs_library_shutdown (&lib);
    SAME (inits (), 0);
    SAME (nvs_library_note_shutdown (&lib), 0);
    SAME (lib.inits, 0);
}

int
main (int argc, char **argv)
{
    static const char *const files[] = { "fifo.so",
                                         "empty.so",
                                         "short.so",
                                         "half.so",
                                         "byte.so",
                                         "class.so",
                                         "order.so",
                                         "machine.so",
                                         "type.so",
                                         "alone.so",
                                         "stubs/libnvidia-ml.so.1",
                                         "libnvidia-ml.so",
                                         "stubs" };
    char stubs[64];

    if (argc < 3)
        return 99;
    if (argc == 3) {
        /* Once more, with the stubs folder in front in the loader's search. */
        if (mkdtemp (folder) == NULL)
            return 99;
        (void)snprintf (stubs, sizeof stubs, "%s/stubs", folder);
        (void)mkdir (stubs, 0700); /* the loader never again looks into a folder that was missing at its start */
        (void)setenv ("LD_LIBRARY_PATH", stubs, 1);
        (void)execl ("/proc/self/exe", argv[0], argv[1], argv[2], folder, (char *)NULL);
        return 99;
    }
    (void)snprintf (folder, sizeof folder, "%s", argv[3]);
    test_bad_files (argv[1], argv[2]);
    test_stubs (argv[1], argv[2]);
    test_most_telling (argv[2]);
    test_tried_is_bounded ();
    test_good (argv[1]);
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++)
        (void)remove (in_folder (files[i]));
    SAME (rmdir (folder), 0);
    return tap_done ();
}
