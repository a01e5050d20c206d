/* SPDX-License-Identifier: Apache-2.0 */
#include "devtree.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/magic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "cleanup.h"
#include "error.h"

#define PARAMS_PATH "/proc/driver/nvidia/params"
#define PARAMS_MAX  65536

/* ---- survey ------------------------------------------------------------------------------------------- */

static bool
has_prefix (const char *text, const char *prefix)
{
    return strncmp (text, prefix, strlen (prefix)) == 0;
}

/* nvidia0, nvidia12: a GPU by its minor number. */
static bool
is_gpu_name (const char *name, unsigned int *number)
{
    const char *digits = name + strlen ("nvidia");
    unsigned long value;
    char *end;

    if (!has_prefix (name, "nvidia") || !isdigit ((unsigned char)*digits))
        return false;
    value = strtoul (digits, &end, 10);
    *number = (unsigned int)value;
    return *end == '\0' && value <= 0xfffff;
}

/* But a GPU's. */
static bool
is_driver_name (const char *name)
{
    return strcmp (name, "nvidiactl") == 0 || strcmp (name, "nvidia-modeset") == 0 || strcmp (name, "dxg") == 0
           || has_prefix (name, "nvidia-uvm") || has_prefix (name, "nvidia-nvswitch")
           || has_prefix (name, "nvidia-vgpu");
}

static bool
is_wanted_name (const struct nvs_policy *policy, const char *name)
{
    unsigned int number;

    return is_gpu_name (name, &number) ? nvs_policy_shows_gpu (policy, number) : is_driver_name (name);
}

bool
nvs_devtree_is_nvmls (const char *name)
{
    unsigned int number;

    return is_gpu_name (name, &number) || is_driver_name (name) || has_prefix (name, "nvidia-caps")
           || strcmp (name, "nvidia-nvlink") == 0 || strcmp (name, "char") == 0;
}

/* Regular files are stand-ins, as tests and some container runtimes make them: no harm, and bound. */
static bool
is_wanted_node (const struct nvs_policy *policy, const char *name, const struct stat *st)
{
    if (S_ISREG (st->st_mode))
        return true;
    if (!S_ISCHR (st->st_mode))
        return false;
    return strcmp (name, "dxg") == 0 ? policy->dxg : nvs_policy_allows (policy, st->st_rdev);
}

/* A place for one more, or NULL when there is none; an odd node more or less does not fail the start. */
static struct nvs_node *
add_node (struct nvs_devtree *tree)
{
    if (tree->count == tree->capacity) {
        uint32_t capacity = tree->capacity == 0 ? 64 : tree->capacity * 2;
        struct nvs_node *nodes;

        if (capacity > NVS_NODES_MAX || (nodes = reallocarray (tree->nodes, capacity, sizeof *nodes)) == NULL)
            return NULL;
        tree->nodes = nodes;
        tree->capacity = capacity;
    }
    tree->nodes[tree->count] = (struct nvs_node){ .target = "" };
    return &tree->nodes[tree->count++];
}

static void
survey_node (struct nvs_devtree *tree, const char *folder, const char *name)
{
    char path[NVS_NODE_NAME_MAX];
    struct nvs_node *node;
    struct stat st;
    int length = snprintf (path, sizeof path, "%s%s", folder, name);

    if (length < 0 || (size_t)length >= sizeof path)
        return;
    if (fstatat (tree->root, path, &st, 0) != 0 || !is_wanted_node (tree->policy, path, &st))
        return;
    if ((node = add_node (tree)) == NULL)
        return;
    memcpy (node->name, path, sizeof path);
    node->mode = st.st_mode;
    node->uid = st.st_uid;
    node->gid = st.st_gid;
    node->device = st.st_rdev;
}

/* char/195:0 -> ../nvidia0. Whether the target is shown is seen later; here: whether the number is NVIDIA's. */
static void
survey_link (struct nvs_devtree *tree, const char *name)
{
    char path[NVS_NODE_NAME_MAX];
    char text[PATH_MAX];
    const char *target = text;
    const char *dev_root = tree->policy->options->dev_root;
    struct nvs_node *node;
    unsigned int major_number;
    unsigned int minor_number;
    ssize_t size;
    int length = snprintf (path, sizeof path, "char/%s", name);

    if (length < 0 || (size_t)length >= sizeof path || sscanf (name, "%u:%u", &major_number, &minor_number) != 2
        || !nvs_policy_allows (tree->policy, makedev (major_number, minor_number)))
        return;
    size = readlinkat (tree->root, path, text, sizeof text - 1);
    if (size < 0)
        return;
    text[size] = '\0';
    if (has_prefix (text, "../"))
        target = text + 3;
    else if (has_prefix (text, dev_root) && text[strlen (dev_root)] == '/')
        target = text + strlen (dev_root) + 1;
    else if (has_prefix (text, "/dev/"))
        target = text + 5;
    if (strlen (target) >= NVS_NODE_NAME_MAX || (node = add_node (tree)) == NULL)
        return;
    memcpy (node->name, path, sizeof path);
    memcpy (node->target, target, strlen (target) + 1);
    node->mode = S_IFLNK;
}

/* 0, or an errno. ENOENT is for the caller to judge. */
static int
survey_folder (struct nvs_devtree *tree, const char *folder)
{
    __attribute__ ((cleanup (nvs_close_folder))) DIR *entries = NULL;
    int fd = openat (tree->root, folder[0] != '\0' ? folder : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    struct dirent *entry;

    if (fd < 0)
        return errno;
    if ((entries = fdopendir (fd)) == NULL) {
        int err = errno;

        (void)close (fd);
        return err;
    }
    for (errno = 0; (entry = readdir (entries)) != NULL; errno = 0) {
        if (entry->d_name[0] == '.')
            continue;
        if (strcmp (folder, "char/") == 0)
            survey_link (tree, entry->d_name);
        else if (folder[0] != '\0' || is_wanted_name (tree->policy, entry->d_name))
            survey_node (tree, folder, entry->d_name);
    }
    return errno;
}

static int
compare_nodes (const void *a, const void *b)
{
    const struct nvs_node *left = a;
    const struct nvs_node *right = b;

    return strcmp (left->name, right->name);
}

static const struct nvs_node *
find_node (const struct nvs_devtree *tree, const char *name)
{
    struct nvs_node key = { .target = "" };

    (void)snprintf (key.name, sizeof key.name, "%s", name);
    return tree->count == 0 ? NULL : bsearch (&key, tree->nodes, tree->count, sizeof key, compare_nodes);
}

/* After the namespaces were made, for only mounts of our own namespace can be bound; before /dev is covered, for the
 * dev root may be /dev or lie below it. A descriptor goes on showing what a mount has covered. */
int
nvs_devtree_survey (struct nvs_devtree *tree, const struct nvs_policy *policy, struct nvs_error *error)
{
    static const char *const folders[] = { "nvidia-caps/", "nvidia-caps-imex-channels/", "char/" };
    const char *path = policy->options->dev_root;
    int err;

    *tree = (struct nvs_devtree){ .policy = policy,
                                  .bind_only = policy->options->isolation == NVS_ISOLATION_USER,
                                  .dev = -1 };
    tree->old = open ("/dev", O_PATH | O_DIRECTORY | O_CLOEXEC);
    tree->root = open (path, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (tree->root < 0) {
        err = errno;
        return nvs_fail (error, NVS_STEP_DEV_ROOT, err, path, "%s",
                         err == ENOENT ? "the dev root does not exist; it is the folder that holds nvidiactl and "
                                         "nvidia0, such as /dev or /run/nvidia/driver/dev"
                                       : "the dev root cannot be opened as a folder");
    }
    if ((err = survey_folder (tree, "")) != 0)
        return nvs_fail (error, NVS_STEP_DEV_ROOT, err, path, "the dev root cannot be listed");
    /* Most systems lack some of these. One that cannot be read is as good as absent: its nodes could not be opened. */
    for (size_t i = 0; i < sizeof folders / sizeof *folders; i++)
        (void)survey_folder (tree, folders[i]);
    if (tree->count > 1)
        qsort (tree->nodes, tree->count, sizeof *tree->nodes, compare_nodes);
    return 0;
}

/* ---- the tmpfs ---------------------------------------------------------------------------------------- */

/* From here on nothing that is created under /dev is the host's. */
int
nvs_devtree_cover (struct nvs_devtree *tree, struct nvs_error *error)
{
    struct statfs now;
    struct stat old;
    struct stat dev;
    int err;

    if (mount ("tmpfs", "/dev", "tmpfs", MS_NOSUID | MS_NOEXEC, "mode=0755,size=1m,nr_inodes=16384") != 0) {
        err = errno;
        return nvs_fail (error, NVS_STEP_DEV_TMPFS, err, "/dev", "%s",
                         err == ENOENT ? "there is no folder /dev to cover"
                         : err == EPERM || err == EACCES
                             ? "mounting is refused although the namespace was made: see the AppArmor or SELinux log"
                         : err == ENOSPC ? "the limit of mounts is reached: raise sysctl fs.mount-max"
                                         : "cannot mount a tmpfs");
    }
    tree->dev = open ("/dev", O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (tree->dev < 0) {
        err = errno;
        return nvs_fail (error, NVS_STEP_DEV_TMPFS, err, "/dev", "cannot open the private /dev");
    }
    /* Before the first node: what follows writes through this descriptor, and it must not be the host's folder. */
    if (fstatfs (tree->dev, &now) != 0 || now.f_type != TMPFS_MAGIC || fstat (tree->dev, &dev) != 0
        || (tree->old >= 0 && fstat (tree->old, &old) == 0 && dev.st_dev == old.st_dev))
        return nvs_fail (error, NVS_STEP_DEV_TMPFS, 0, "/dev",
                         "the mount had no effect: this is not a tmpfs of our own");
    return 0;
}

/* ---- base nodes --------------------------------------------------------------------------------------- */

/* Read-only: what is bound is the host's own. A device can be written all the same, but not a regular file, and the mode
 * and owner of neither can be changed, for which its owner needs no capability. Flags that the mount has from outside
 * are locked in a user namespace, and a remount must repeat them. 0, or an errno. */
static int
seal_node (const char *path)
{
    const unsigned long same = MS_NOSUID | MS_NODEV | MS_NOEXEC; /* numbers that statfs has for them too */
    struct statfs now;

    if (statfs (path, &now) != 0)
        return errno;
    if (mount (NULL, path, NULL, MS_REMOUNT | MS_BIND | MS_RDONLY | ((unsigned long)now.f_flags & same), NULL) != 0)
        return errno;
    return 0;
}

/* Shows `name` of the folder `source` under the same name in the private /dev. 0, or an errno. */
static int
bind_node (const struct nvs_devtree *tree, int source, const char *name)
{
    char from[64 + NVS_NODE_NAME_MAX];
    char to[64 + NVS_NODE_NAME_MAX];
    int err;

    (void)snprintf (from, sizeof from, "/proc/self/fd/%d/%s", source, name);
    (void)snprintf (to, sizeof to, "/dev/%s", name);
    if (mknodat (tree->dev, name, S_IFREG | 0444, 0) != 0) /* something to mount on */
        return errno;
    err = mount (from, to, NULL, MS_BIND, NULL) != 0 ? errno : 0;
    if (err == 0) {
        if ((err = seal_node (to)) == 0)
            return 0;
        (void)umount2 (to, MNT_DETACH);
    }
    (void)unlinkat (tree->dev, name, 0);
    return err;
}

int
nvs_devtree_bind_folder (const struct nvs_devtree *tree, int source, const char *name)
{
    char from[64 + NVS_NODE_NAME_MAX];
    char to[64 + NVS_NODE_NAME_MAX];
    int err;

    (void)snprintf (from, sizeof from, "/proc/self/fd/%d/%s", source, name);
    (void)snprintf (to, sizeof to, "/dev/%s", name);
    if (mkdirat (tree->dev, name, 0755) != 0)
        return errno;
    err = mount (from, to, NULL, MS_BIND, NULL) != 0 ? errno : 0;
    if (err == 0) {
        if ((err = seal_node (to)) == 0)
            return 0;
        (void)umount2 (to, MNT_DETACH);
    }
    (void)unlinkat (tree->dev, name, AT_REMOVEDIR);
    return err;
}

/* Creates a node as it is outside, owner included. 0, or an errno, and then it is not there. */
static int
make_node (const struct nvs_devtree *tree, const struct nvs_node *node)
{
    if (tree->bind_only || !S_ISCHR (node->mode))
        return EPERM;
    if (mknodat (tree->dev, node->name, node->mode, node->device) != 0)
        return errno;
    if ((node->uid != geteuid () || node->gid != getegid ())
        && fchownat (tree->dev, node->name, node->uid, node->gid, AT_SYMLINK_NOFOLLOW) != 0) {
        int err = errno;

        (void)unlinkat (tree->dev, node->name, 0);
        return err;
    }
    return 0;
}

int
nvs_devtree_folder (const struct nvs_devtree *tree, const char *name, mode_t mode, struct nvs_error *error)
{
    if (mkdirat (tree->dev, name, mode) != 0) {
        int err = errno;

        return nvs_fail (error, NVS_STEP_DEV_BASE, err, name, "cannot make a folder in the private /dev");
    }
    return 0;
}

int
nvs_devtree_link (const struct nvs_devtree *tree, const char *name, const char *target, struct nvs_error *error)
{
    if (symlinkat (target, tree->dev, name) != 0) {
        int err = errno;

        return nvs_fail (error, NVS_STEP_DEV_BASE, err, name, "cannot make a link in the private /dev");
    }
    return 0;
}

int
nvs_devtree_bind (const struct nvs_devtree *tree, const char *name)
{
    return tree->old < 0 ? ENOENT : bind_node (tree, tree->old, name);
}

/* What any program may expect in /dev. A device of these that can be neither made nor bound is left out: minimal
 * containers lack some, and NVML needs none of them. */
int
nvs_devtree_nodes (const struct nvs_devtree *tree, struct nvs_error *error)
{
    static const struct {
        const char *name;
        unsigned int major_number;
        unsigned int minor_number;
    } nodes[] = {
        { "null", 1, 3 }, { "zero", 1, 5 }, { "full", 1, 7 }, { "random", 1, 8 }, { "urandom", 1, 9 }, { "tty", 5, 0 },
    };

    for (size_t i = 0; i < sizeof nodes / sizeof *nodes; i++) {
        struct nvs_node node = { .mode = S_IFCHR | 0666,
                                 .uid = geteuid (),
                                 .gid = getegid (),
                                 .device = makedev (nodes[i].major_number, nodes[i].minor_number) };

        (void)snprintf (node.name, sizeof node.name, "%s", nodes[i].name);
        if (make_node (tree, &node) != 0 && tree->old >= 0)
            (void)bind_node (tree, tree->old, node.name);
    }
    if (nvs_devtree_link (tree, "fd", "/proc/self/fd", error) != 0
        || nvs_devtree_link (tree, "stdin", "/proc/self/fd/0", error) != 0
        || nvs_devtree_link (tree, "stdout", "/proc/self/fd/1", error) != 0
        || nvs_devtree_link (tree, "stderr", "/proc/self/fd/2", error) != 0)
        return -1;
    return 0;
}

int
nvs_devtree_base (struct nvs_devtree *tree, struct nvs_error *error)
{
    char old_pts[64];

    if (nvs_devtree_nodes (tree, error) != 0 || nvs_devtree_link (tree, "ptmx", "pts/ptmx", error) != 0)
        return -1;
    if (nvs_devtree_folder (tree, "pts", 0755, error) != 0 || nvs_devtree_folder (tree, "shm", 01777, error) != 0)
        return -1;
    /* Terminals of our own where we may have them, the old ones where a policy refuses that, else none. */
    if (mount ("devpts", "/dev/pts", "devpts", MS_NOSUID | MS_NOEXEC, "newinstance,ptmxmode=0666,mode=0620") != 0
        && tree->old >= 0) {
        (void)snprintf (old_pts, sizeof old_pts, "/proc/self/fd/%d/pts", tree->old);
        (void)mount (old_pts, "/dev/pts", NULL, MS_BIND, NULL);
    }
    /* A mount of its own, so that it stays writable where /dev is not; else the folder does. */
    (void)mount ("tmpfs", "/dev/shm", "tmpfs", MS_NOSUID | MS_NODEV | MS_NOEXEC, "mode=1777,size=16m");
    return 0;
}

/* ---- NVIDIA's nodes ----------------------------------------------------------------------------------- */

/* The folder above "folder/name"; that it exists already is fine. */
static void
make_parent (const struct nvs_devtree *tree, const char *name)
{
    const char *slash = strchr (name, '/');
    char folder[NVS_NODE_NAME_MAX];

    if (slash == NULL)
        return;
    (void)snprintf (folder, sizeof folder, "%.*s", (int)(slash - name), name);
    (void)mkdirat (tree->dev, folder, 0755);
}

bool
nvs_devtree_show (const struct nvs_devtree *tree, const struct nvs_node *node)
{
    make_parent (tree, node->name);
    /* EPERM comes from the device cgroup, from a user namespace that we were started in, or for want of CAP_MKNOD. */
    return make_node (tree, node) == 0 || bind_node (tree, tree->root, node->name) == 0;
}

/* Convenience for NVML; that one is missing is no failure. */
static bool
show_link (const struct nvs_devtree *tree, const struct nvs_node *node)
{
    char target[8 + NVS_NODE_NAME_MAX];

    if (find_node (tree, node->target) == NULL || faccessat (tree->dev, node->target, F_OK, AT_SYMLINK_NOFOLLOW) != 0)
        return false;
    (void)snprintf (target, sizeof target, "../%s", node->target);
    return symlinkat (target, tree->dev, node->name) == 0;
}

/* None of them failing is a failure of the start: NVML says better than we can what it misses in a node. */
int
nvs_devtree_nvidia (struct nvs_devtree *tree, struct nvs_error *error)
{
    if (mkdirat (tree->dev, "char", 0755) != 0) {
        int err = errno;

        return nvs_fail (error, NVS_STEP_DEV_NVIDIA, err, "/dev/char", "cannot make a folder in the private /dev");
    }
    for (uint32_t i = 0; i < tree->count; i++) {
        if (!S_ISLNK (tree->nodes[i].mode) && nvs_devtree_show (tree, &tree->nodes[i]))
            tree->shown++;
    }
    for (uint32_t i = 0; i < tree->count; i++) {
        if (S_ISLNK (tree->nodes[i].mode))
            (void)show_link (tree, &tree->nodes[i]);
    }
    return 0;
}

/* ---- the driver's parameters -------------------------------------------------------------------------- */

/* Copies the text with ModifyDeviceFiles: 0. Returns its length, or 0 when it does not fit. */
static size_t
edit_params (const char *text, char *edited, size_t size)
{
    static const char key[] = "ModifyDeviceFiles:";
    size_t length = 0;

    for (const char *line = text; *line != '\0';) {
        size_t line_length = strcspn (line, "\n");
        int added;

        if (!has_prefix (line, key)) {
            added = snprintf (edited + length, size - length, "%.*s\n", (int)line_length, line);
            if (added < 0 || (size_t)added >= size - length)
                return 0;
            length += (size_t)added;
        }
        line += line_length + (line[line_length] == '\n');
    }
    {
        int added = snprintf (edited + length, size - length, "%s 0\n", key);

        return added < 0 || (size_t)added >= size - length ? 0 : length + (size_t)added;
    }
}

/* Lays the copy over the file of /proc, in our namespace alone. The copy needs a name only until it is mounted. */
static int
cover_params (const struct nvs_devtree *tree, int original, struct nvs_error *error)
{
    static char text[PARAMS_MAX];
    static char edited[PARAMS_MAX + 64];
    __attribute__ ((cleanup (nvs_close_fd))) int copy = -1;
    size_t length = 0;
    ssize_t got;
    int err;

    while (length < sizeof text - 1 && (got = read (original, text + length, sizeof text - 1 - length)) != 0) {
        if (got < 0) {
            err = errno;
            return nvs_fail (error, NVS_STEP_PARAMS, err, PARAMS_PATH, "cannot read the driver's parameters");
        }
        length += (size_t)got;
    }
    text[length] = '\0';
    /* Neither half of them nor an empty file, which would let NVML make nodes. */
    if (length == sizeof text - 1 || (length = edit_params (text, edited, sizeof edited)) == 0)
        return nvs_fail (error, NVS_STEP_PARAMS, EFBIG, PARAMS_PATH, "the driver's parameters are too long");
    copy = openat (tree->dev, ".params", O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0444);
    if (copy < 0 || write (copy, edited, length) != (ssize_t)length) {
        err = errno;
        return nvs_fail (error, NVS_STEP_PARAMS, err, "/dev/.params", "cannot write the copy of the parameters");
    }
    if (mount ("/dev/.params", PARAMS_PATH, NULL, MS_BIND, NULL) != 0) {
        err = errno;
        return nvs_fail (error, NVS_STEP_PARAMS, err, PARAMS_PATH, "cannot cover the driver's parameters");
    }
    (void)unlinkat (tree->dev, ".params", 0);
    return 0;
}

int
nvs_devtree_no_files (const struct nvs_devtree *tree, struct nvs_error *error)
{
    __attribute__ ((cleanup (nvs_close_fd))) int original = -1;
    int err;

    original = open (PARAMS_PATH, O_RDONLY | O_CLOEXEC);
    err = errno;
    if (original >= 0) {
        if (cover_params (tree, original, error) != 0)
            return -1;
    } else if (err != ENOENT && err != ENOTDIR) {
        return nvs_fail (error, NVS_STEP_PARAMS, err, PARAMS_PATH, "cannot read the driver's parameters");
    }
    return 0;
}

int
nvs_devtree_params (struct nvs_devtree *tree, struct nvs_error *error)
{
    int err;

    if (tree->policy->mknod)
        return 0;
    if (nvs_devtree_no_files (tree, error) != 0)
        return -1;
    if (mount (NULL, "/dev", NULL, MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | MS_NOEXEC, NULL) != 0) {
        err = errno;
        return nvs_fail (error, NVS_STEP_PARAMS, err, "/dev", "cannot make the private /dev read-only");
    }
    return 0;
}

void
nvs_devtree_release (struct nvs_devtree *tree)
{
    free (tree->nodes);
    tree->nodes = NULL;
    nvs_close_fd (&tree->root);
    nvs_close_fd (&tree->old);
    nvs_close_fd (&tree->dev);
    tree->root = tree->old = tree->dev = -1;
}
