/* SPDX-License-Identifier: Apache-2.0 */
/* A program as exporters are: it loads NVML by its name, asks for GPUs, says what it has seen of /dev, and stays. */
#include <dirent.h>
#include <dlfcn.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>

int
main (void)
{
    int (*init) (void);
    int (*count) (unsigned *);
    unsigned devices = 0;
    int status = -1;
    void *library = dlopen ("libnvidia-ml.so.1", RTLD_NOW);

    if (library == NULL) {
        printf ("library %s\n", dlerror ());
    } else {
        *(void **)&init = dlsym (library, "nvmlInit_v2");
        *(void **)&count = dlsym (library, "nvmlDeviceGetCount_v2");
        status = init ();
        if (status == 0)
            status = count (&devices);
    }
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
