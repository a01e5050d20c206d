/* SPDX-License-Identifier: Apache-2.0 */
/* A program as exporters and DRA drivers are: it loads NVML by its name, or from the driver root that it has mounted, asks
 * for GPUs, says what it has seen of /dev, and stays. With -DBARE it needs no library: it makes a node as NVML does. */
#include <dirent.h>
#include <dlfcn.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#ifdef BARE
static int
ask (unsigned *devices)
{
    *devices = 0;
    umask (0);
    return mknod ("/dev/nvidiactl", S_IFCHR | 0666, makedev (195, 255));
}
#else
static int
ask (unsigned *devices)
{
    int (*init) (void);
    int (*count) (unsigned *);
    void *library = dlopen ("libnvidia-ml.so.1", RTLD_NOW);

    if (library == NULL)
        library = dlopen ("/driver-root/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1", RTLD_NOW);
    if (library == NULL) {
        printf ("library %s\n", dlerror ());
        return -1;
    }
    *(void **)&init = dlsym (library, "nvmlInit_v2");
    *(void **)&count = dlsym (library, "nvmlDeviceGetCount_v2");
    int status = init ();
    return status == 0 ? count (devices) : status;
}
#endif

int
main (void)
{
    unsigned devices = 0;
    int status = ask (&devices);

    printf ("nvml %d\ndevices %u\n", status, devices);

    DIR *folder = opendir ("/dev");
    for (struct dirent *entry; folder != NULL && (entry = readdir (folder)) != NULL;)
        if (strncmp (entry->d_name, "nvidia", 6) == 0)
            printf ("node %s\n", entry->d_name);
    struct statvfs of;
    if (statvfs ("/dev", &of) == 0)
        printf ("size %llu\n", (unsigned long long)of.f_blocks * of.f_frsize);

    char line[256];
    FILE *file = fopen ("/proc/self/status", "r");
    while (file != NULL && fgets (line, sizeof line, file) != NULL)
        if (strncmp (line, "CapEff", 6) == 0 || strncmp (line, "NoNewPrivs", 10) == 0 || strncmp (line, "Uid", 3) == 0)
            fputs (line, stdout);
    puts ("ready");
    fflush (stdout);
    signal (SIGTERM, _exit);
    for (;;)
        pause ();
}
