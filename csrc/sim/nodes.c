/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The device nodes, made at the moments and with the numbers and modes at which NVIDIA's library makes them: this
 * is the side effect that the product is about. All in /dev of the mount namespace in which this process is.
 */
#include "sim.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#define NVIDIA_MAJOR  195u
#define CAPS_MAJOR    235u
#define CONTROL_MINOR 255u

/* ModifyDeviceFiles in the driver's parameters; without a driver there is no such file, and that means yes. */
static bool
may_make_nodes (void)
{
    char line[256];
    bool may = true;
    FILE *params = fopen ("/proc/driver/nvidia/params", "re");

    if (params == NULL)
        return true;
    while (fgets (line, sizeof line, params) != NULL)
        if (strncmp (line, "ModifyDeviceFiles:", 18) == 0)
            may = strtoul (line + 18, NULL, 10) != 0;
    (void)fclose (params);
    return may;
}

/* /dev/char/MAJOR:MINOR -> the node, replaced also where it is right already. */
static void
make_link (unsigned major_number, unsigned minor_number, const char *target)
{
    char link[64];

    (void)mkdir ("/dev/char", 0755);
    (void)snprintf (link, sizeof link, "/dev/char/%u:%u", major_number, minor_number);
    (void)unlink (link);
    (void)symlink (target, link);
}

/* A node that is right is kept, any other is replaced. The mode is set after mknod, for the umask must not
 * matter. Failing is silent: the simulated driver then behaves as if the node were elsewhere. */
static void
make_node (const char *path, mode_t mode, unsigned major_number, unsigned minor_number)
{
    struct stat now;
    char target[80];

    if (lstat (path, &now) == 0) {
        if (S_ISCHR (now.st_mode) && now.st_rdev == makedev (major_number, minor_number)
            && (now.st_mode & 07777) == mode)
            goto linked;
        if (unlink (path) != 0)
            return;
    }
    if (mknod (path, S_IFCHR | mode, makedev (major_number, minor_number)) != 0)
        return;
    (void)chmod (path, mode);
linked:
    (void)snprintf (target, sizeof target, "../%s", path + sizeof "/dev/" - 1);
    make_link (major_number, minor_number, target);
}

static void
make_cap (unsigned minor_number, mode_t mode)
{
    char path[64];

    (void)mkdir ("/dev/nvidia-caps", 0755);
    (void)snprintf (path, sizeof path, "/dev/nvidia-caps/nvidia-cap%u", minor_number);
    make_node (path, mode, CAPS_MAJOR, minor_number);
}

/* Capability numbers as the driver counts them: 1 and 2 are MIG's config and monitor; then for each GPU a block for
 * its 15 possible GPU instances, each one for itself and 8 for its compute instances. */
static unsigned
gi_cap (const struct nvs_gpu *gpu, unsigned gi)
{
    return 3 + gpu->minor * 135 + gi * 9;
}

void
nvs_nodes_mig (const struct nvs_gpu *gpu)
{
    if (!may_make_nodes ())
        return;
    for (unsigned i = 0; i < NVS_SLICES; i++) {
        const struct nvs_gi *gi = gpu->gis[i];

        if (gi == NULL)
            continue;
        make_cap (gi_cap (gpu, gi->id), 0444);
        for (unsigned j = 0; j < NVS_SLICES; j++)
            if (gi->cis[j] != NULL)
                make_cap (gi_cap (gpu, gi->id) + 1 + gi->cis[j]->id, 0444);
    }
}

void
nvs_nodes_make (void)
{
    bool mig = false;

    if (!may_make_nodes ())
        return;
    make_node ("/dev/nvidiactl", 0666, NVIDIA_MAJOR, CONTROL_MINOR);
    for (unsigned i = 0; i < nvs_machine.count; i++) {
        const struct nvs_gpu *gpu = &nvs_machine.gpus[i];
        char path[32];

        (void)snprintf (path, sizeof path, "/dev/nvidia%u", gpu->minor);
        make_node (path, 0666, NVIDIA_MAJOR, gpu->minor);
        mig = mig || gpu->profile->mig;
    }
    if (!mig)
        return;
    make_cap (1, 0400);
    make_cap (2, 0444);
    for (unsigned i = 0; i < nvs_machine.count; i++)
        nvs_nodes_mig (&nvs_machine.gpus[i]);
}
