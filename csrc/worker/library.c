/* SPDX-License-Identifier: Apache-2.0 */
#include "library.h"

#include <dlfcn.h>
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../cleanup.h"
#include "../error.h"

#if defined(__x86_64__)
#define OWN_MACHINE EM_X86_64
#elif defined(__aarch64__)
#define OWN_MACHINE EM_AARCH64
#else
#error "nvsandbox knows x86-64 and aarch64"
#endif

#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
#define OWN_DATA ELFDATA2LSB
#else
#define OWN_DATA ELFDATA2MSB
#endif

#define SHUTDOWNS_MAX 65536u
#define LEFT_OUT_SIZE 32u /* "and 63 more" */

/* How much a failed candidate tells about what is wrong: of several, the error speaks of the highest. */
enum rank {
    RANK_NONE,
    RANK_ABSENT,   /* not there: says nothing as long as others are */
    RANK_STUB,     /* the toolkit's link-time stand-in */
    RANK_UNUSABLE, /* there, but not for us: no permission, another architecture, not NVML */
    RANK_REFUSED,  /* a proper library that the loader refuses */
};

struct verdict {
    enum rank rank; /* RANK_NONE: it is good */
    int err;
    char reason[384];
};

__attribute__ ((format (printf, 4, 5))) static void
judge (struct verdict *verdict, enum rank rank, int err, const char *format, ...)
{
    va_list args;

    verdict->rank = rank;
    verdict->err = err;
    va_start (args, format);
    (void)vsnprintf (verdict->reason, sizeof verdict->reason, format, args);
    va_end (args);
    /* One line for each candidate, whatever the loader wrote. */
    for (char *p = verdict->reason; *p != '\0'; p++)
        if (*p == '\n')
            *p = ' ';
}

/* Does a path lead through a folder named "stubs"? The CUDA toolkit keeps a library for linking there that has all of
 * NVML's names, prints a banner and fails; with the toolkit in LD_LIBRARY_PATH it is found before the driver's. */
static bool
through_stubs (const char *path)
{
    const char *part = path;

    for (;;) {
        const char *end = strchr (part, '/');

        if (end == NULL)
            return false;
        if (end - part == 5 && memcmp (part, "stubs", 5) == 0)
            return true;
        part = end + 1;
    }
}

static bool
is_stub (const char *path)
{
    char real[PATH_MAX];

    return through_stubs (path) || (realpath (path, real) != NULL && through_stubs (real));
}

static const char *
machine_name (unsigned machine)
{
    switch (machine) {
    case EM_386: return "32-bit x86";
    case EM_X86_64: return "x86-64";
    case EM_ARM: return "32-bit ARM";
    case EM_AARCH64: return "aarch64";
    case EM_PPC64: return "POWER";
    case EM_RISCV: return "RISC-V";
    default: return "another architecture";
    }
}

static bool
read_at (int fd, void *to, size_t size, uint64_t offset)
{
    size_t done = 0;

    while (done < size) {
        ssize_t n = pread (fd, (char *)to + done, size - done, (off_t)(offset + done));

        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return false;
        done += (size_t)n;
    }
    return true;
}

static bool
inside (uint64_t offset, uint64_t length, uint64_t size)
{
    return offset <= size && length <= size - offset;
}

/* The loader's own words for these faults are poor ("file too short"), and a file that was cut off in the middle of a
 * segment gets past it and dies of SIGBUS later. */
static void
check_elf (int fd, uint64_t size, struct verdict *verdict)
{
    Elf64_Ehdr header;

    if (size < EI_NIDENT || !read_at (fd, &header, EI_NIDENT, 0) || memcmp (header.e_ident, ELFMAG, SELFMAG) != 0) {
        judge (verdict, RANK_UNUSABLE, ENOEXEC, "is not a shared library (no ELF header)");
        return;
    }
    if (header.e_ident[EI_CLASS] != ELFCLASS64) {
        judge (verdict, RANK_UNUSABLE, ENOEXEC, "is a 32-bit library, this process is 64-bit %s",
               machine_name (OWN_MACHINE));
        return;
    }
    if (header.e_ident[EI_DATA] != OWN_DATA) {
        judge (verdict, RANK_UNUSABLE, ENOEXEC, "has the other byte order");
        return;
    }
    if (size < sizeof header || !read_at (fd, &header, sizeof header, 0)) {
        judge (verdict, RANK_UNUSABLE, ENOEXEC, "is truncated: %llu bytes end in the ELF header",
               (unsigned long long)size);
        return;
    }
    if (header.e_machine != OWN_MACHINE) {
        judge (verdict, RANK_UNUSABLE, ENOEXEC, "is for %s (ELF machine %u), this process is %s",
               machine_name (header.e_machine), header.e_machine, machine_name (OWN_MACHINE));
        return;
    }
    if (header.e_type != ET_DYN) {
        judge (verdict, RANK_UNUSABLE, ENOEXEC, "is an ELF file of type %u, not a shared library", header.e_type);
        return;
    }
    if (header.e_phnum == 0 || header.e_phentsize != sizeof (Elf64_Phdr)) {
        judge (verdict, RANK_UNUSABLE, ENOEXEC, "has no proper program headers");
        return;
    }
    if (!inside (header.e_phoff, (uint64_t)header.e_phnum * sizeof (Elf64_Phdr), size)
        || (header.e_shoff != 0 && !inside (header.e_shoff, (uint64_t)header.e_shnum * header.e_shentsize, size))) {
        judge (verdict, RANK_UNUSABLE, ENOEXEC, "is truncated: its headers lie behind its end at %llu bytes",
               (unsigned long long)size);
        return;
    }
    for (unsigned i = 0; i < header.e_phnum; i++) {
        Elf64_Phdr segment;

        if (!read_at (fd, &segment, sizeof segment, header.e_phoff + i * sizeof segment)) {
            judge (verdict, RANK_UNUSABLE, EIO, "cannot be read");
            return;
        }
        if (segment.p_type == PT_LOAD && !inside (segment.p_offset, segment.p_filesz, size)) {
            judge (verdict, RANK_UNUSABLE, ENOEXEC, "is truncated: segment %u goes beyond its end at %llu bytes", i,
                   (unsigned long long)size);
            return;
        }
    }
}

static void
check_file (const char *path, struct verdict *verdict)
{
    __attribute__ ((cleanup (nvs_close_fd))) int fd = -1;
    struct stat st;
    int err;

    /* stat before open, for opening a device or a FIFO can have effects. */
    if (stat (path, &st) < 0) {
        err = errno;
        judge (verdict, err == ENOENT || err == ENOTDIR ? RANK_ABSENT : RANK_UNUSABLE, err, "%s", strerror (err));
        return;
    }
    if (!S_ISREG (st.st_mode)) {
        judge (verdict, RANK_UNUSABLE, S_ISDIR (st.st_mode) ? EISDIR : ENOEXEC, "is not a regular file");
        return;
    }
    fd = open (path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (fd < 0) {
        err = errno;
        judge (verdict, RANK_UNUSABLE, err, "cannot be opened: %s", strerror (err));
        return;
    }
    if (fstat (fd, &st) < 0 || !S_ISREG (st.st_mode)) {
        judge (verdict, RANK_UNUSABLE, ENOEXEC, "is not a regular file");
        return;
    }
    check_elf (fd, (uint64_t)st.st_size, verdict);
}

static void
try_candidate (struct nvs_library *lib, const char *candidate, struct verdict *verdict)
{
    const bool by_path = strchr (candidate, '/') != NULL;
    struct link_map *map = NULL;
    const char *found;
    const char *text;
    size_t length;
    bool own;

    if (by_path) {
        if (is_stub (candidate)) {
            judge (verdict, RANK_STUB, ENOENT, "skipped: a stub for linking, not the driver's library");
            return;
        }
        check_file (candidate, verdict);
        if (verdict->rank != RANK_NONE)
            return;
    }

    /* NOW: what cannot work fails here and not in the middle of a call. LOCAL: its names are for us alone. */
    lib->handle = dlopen (candidate, RTLD_NOW | RTLD_LOCAL);
    if (lib->handle == NULL) {
        text = dlerror ();
        text = text != NULL ? text : "the loader gives no reason";
        length = strlen (candidate);
        own = strncmp (text, candidate, length) == 0 && text[length] == ':'; /* else it is about a dependency */
        if (own)
            text += length + 1 + (text[length + 1] == ' ');
        if (own && !by_path && strstr (text, "cannot open shared object file") != NULL)
            judge (verdict, RANK_ABSENT, ENOENT, "the loader does not find it");
        else
            judge (verdict, RANK_REFUSED, ELIBACC, "the loader refuses it: %s", text);
        return;
    }
    if (dlinfo (lib->handle, RTLD_DI_LINKMAP, &map) != 0 || map == NULL)
        judge (verdict, RANK_REFUSED, ELIBBAD, "the loader does not say what it loaded");
    else {
        lib->map = map;
        found = map->l_name != NULL && map->l_name[0] != '\0' ? map->l_name : candidate;
        (void)snprintf (lib->path, sizeof lib->path, "%s", by_path ? candidate : found);
        if (!by_path && is_stub (found))
            judge (verdict, RANK_STUB, ENOENT, "skipped: the loader finds %s, a stub for linking", found);
        else if ((nvs_library_symbol (lib, "nvmlInitWithFlags") == NULL
                  && nvs_library_symbol (lib, "nvmlInit_v2") == NULL && nvs_library_symbol (lib, "nvmlInit") == NULL)
                 || nvs_library_symbol (lib, "nvmlShutdown") == NULL)
            judge (verdict, RANK_UNUSABLE, ELIBBAD, "is not NVML (it lacks nvmlInit or nvmlShutdown)");
    }
    if (verdict->rank != RANK_NONE) {
        (void)dlclose (lib->handle);
        lib->handle = NULL;
        lib->map = NULL;
        lib->path[0] = '\0';
    }
}

/* Whole lines only, and behind them room for note_left_out (). Whether this one fitted. */
static bool
note_tried (char *tried, size_t size, const char *candidate, const char *reason)
{
    size_t used = strlen (tried);
    size_t room = size - LEFT_OUT_SIZE - used;
    int n = snprintf (tried + used, room, "%s: %s\n", candidate, reason);

    if (n >= 0 && (size_t)n < room)
        return true;
    tried[used] = '\0';
    return false;
}

static void
note_left_out (char *tried, size_t size, uint32_t count)
{
    size_t used = strlen (tried);

    if (count > 0)
        (void)snprintf (tried + used, size - used, "and %u more\n", count);
}

/* "/opt/libz.so is not NVML", "/opt/libx.so: the loader refuses it". Of a long path the end, so that the reason stays
 * whole. */
static void
subject (char *text, size_t size, const char *path, const char *reason)
{
    const size_t most = 96;
    const size_t length = strlen (path);
    const bool verb =
        strncmp (reason, "is ", 3) == 0 || strncmp (reason, "has ", 4) == 0 || strncmp (reason, "cannot ", 7) == 0;

    (void)snprintf (text, size, "%s%s%s%s", length > most ? "..." : "", length > most ? path + (length - most) : path,
                    verb ? " " : ": ", reason);
}

int
nvs_library_load (struct nvs_library *lib, const char *const *candidates, uint32_t count, char *tried,
                  size_t tried_size, struct nvs_error *error)
{
    struct verdict worst = { RANK_NONE, ENOENT, "" };
    const char *worst_path = "";
    char text[sizeof worst.reason + 128];
    uint32_t left_out = 0;

    tried[0] = '\0';
    for (uint32_t i = 0; i < count; i++) {
        struct verdict verdict = { RANK_NONE, 0, "" };

        try_candidate (lib, candidates[i], &verdict);
        if (!note_tried (tried, tried_size, candidates[i], verdict.rank == RANK_NONE ? "loaded" : verdict.reason))
            left_out++;
        if (verdict.rank == RANK_NONE)
            return 0;
        if (verdict.rank > worst.rank) {
            worst = verdict;
            worst_path = candidates[i];
        }
    }
    note_left_out (tried, tried_size, left_out);
    switch (worst.rank) {
    case RANK_NONE:
    case RANK_ABSENT:
        if (count == 1)
            return nvs_fail (error, NVS_STEP_LIBRARY, ENOENT, worst_path,
                             "%sinstall NVIDIA's driver, or say where it is with driver_root= or library=",
                             strchr (worst_path, '/') != NULL ? "there is none where library= says: " : "");
        return nvs_fail (error, NVS_STEP_LIBRARY, ENOENT, NULL,
                         "it is in none of the %u places tried: install NVIDIA's driver, or say where it is with "
                         "driver_root= or library=",
                         count);
    case RANK_STUB:
        return nvs_fail (
            error, NVS_STEP_LIBRARY, worst.err, worst_path,
            "only a stub for linking was found: take its folder out of LD_LIBRARY_PATH, and install NVIDIA's "
            "driver or say where it is with driver_root= or library=");
    case RANK_UNUSABLE:
    case RANK_REFUSED: break;
    }
    subject (text, sizeof text, worst_path, worst.reason);
    return nvs_fail (error, NVS_STEP_LIBRARY, worst.err, worst_path,
                     "%s; name the driver's libnvidia-ml.so.1 with library=, or its root with driver_root=", text);
}

/* dlsym also searches the library's dependencies, and would find libc's system(). */
void *
nvs_library_symbol (const struct nvs_library *lib, const char *name)
{
    struct link_map *map = NULL;
    void *symbol;
    Dl_info info;

    if (strncmp (name, "nvml", 4) != 0)
        return NULL;
    for (const char *p = name; *p != '\0'; p++)
        if (!((*p >= 'a' && *p <= 'z') || (*p >= 'A' && *p <= 'Z') || (*p >= '0' && *p <= '9') || *p == '_'))
            return NULL;
    symbol = dlsym (lib->handle, name);
    if (symbol == NULL || dladdr1 (symbol, &info, (void **)&map, RTLD_DL_LINKMAP) == 0 || map != lib->map)
        return NULL;
    return symbol;
}

int
nvs_library_init (struct nvs_library *lib, int32_t *result, struct nvs_error *error)
{
    union {
        void *address;
        int32_t (*with_flags) (uint32_t);
        int32_t (*plain) (void);
    } entry;

    entry.address = nvs_library_symbol (lib, "nvmlInitWithFlags");
    if (entry.address != NULL)
        *result = entry.with_flags (0);
    else {
        entry.address = nvs_library_symbol (lib, "nvmlInit_v2");
        if (entry.address == NULL)
            entry.address = nvs_library_symbol (lib, "nvmlInit");
        if (entry.address == NULL)
            return nvs_fail (error, NVS_STEP_INIT, ENOSYS, lib->path, "the library has no nvmlInit");
        *result = entry.plain ();
    }
    if (*result == 0)
        nvs_library_note_init (lib);
    return 0;
}

void
nvs_library_shutdown (struct nvs_library *lib)
{
    union {
        void *address;
        int32_t (*shutdown) (void);
    } entry;
    uint32_t open;

    entry.address = lib->handle != NULL ? nvs_library_symbol (lib, "nvmlShutdown") : NULL;
    if (entry.address == NULL)
        return;
    open = atomic_exchange (&lib->inits, 0);
    if (open > SHUTDOWNS_MAX)
        open = SHUTDOWNS_MAX;
    while (open-- > 0)
        if (entry.shutdown () != 0)
            return;
    /* No dlclose: the process ends now, and destructors may run into threads that are still inside. */
}

void
nvs_library_note_init (struct nvs_library *lib)
{
    (void)atomic_fetch_add (&lib->inits, 1);
}

uint32_t
nvs_library_note_shutdown (struct nvs_library *lib)
{
    uint32_t open = atomic_load (&lib->inits);

    while (open > 0 && !atomic_compare_exchange_weak (&lib->inits, &open, open - 1))
        continue;
    return open > 0 ? open - 1 : 0;
}
