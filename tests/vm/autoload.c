/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What makes the kernel look for a module, without any call that says so: a name or a number that nothing has registered.
 * As a library that looks like NVML to the worker, in which nvmlSystemGetProcessName(n) makes the n-th attempt; and as a
 * program, which makes all of them.
 *
 * Each gives "attempt<TAB>errno<TAB>names": what the kernel asked modprobe for, which is whatever came to the log of the
 * guest's own modprobe (test_modules.py) meanwhile. The kernel waits for modprobe, so it is complete.
 */
#define _GNU_SOURCE 1
#include <errno.h>
#include <fcntl.h>
#include <linux/if.h>
#include <linux/genetlink.h>
#include <linux/netlink.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <unistd.h>

#define LOG       "/run/modprobe.log"
#define NR_FSOPEN 430

static int
result (long rc)
{
    return rc >= 0 ? 0 : errno;
}

/* ---- ioctls that any descriptor of the kind takes */

static int
on_unix_socket (unsigned long request, void *argument)
{
    int fd = socket (AF_UNIX, SOCK_STREAM, 0);
    int err = fd < 0 ? errno : result (ioctl (fd, request, argument));

    (void)close (fd);
    return err;
}

static int
vlan (void)
{
    char arguments[64] = { 0 };

    return on_unix_socket (SIOCGIFVLAN, arguments);
}

static int
bridge (void)
{
    unsigned long arguments[4] = { 0 };

    return on_unix_socket (SIOCGIFBR, arguments);
}

static int
interface (void)
{
    struct ifreq request = { 0 };

    (void)strcpy (request.ifr_name, "no-such-one");
    return on_unix_socket (SIOCGIFFLAGS, &request);
}

/* Of a number that no discipline has: it stays one that is to be looked for. */
static int
discipline (void)
{
    int number = 28;
    int fd = open ("/dev/ptmx", O_RDWR | O_NOCTTY | O_CLOEXEC);
    int err = fd < 0 ? errno : result (ioctl (fd, TIOCSETD, &number));

    (void)close (fd);
    return err;
}

/* ---- sockets */

static int
of_family (int family, int type, int protocol)
{
    int fd = socket (family, type, protocol);
    int err = result (fd);

    (void)close (fd);
    return err;
}

static int
family (void)
{
    return of_family (AF_CAN, SOCK_RAW, 1);
}

static int
family_pair (void)
{
    int ends[2];

    return result (socketpair (AF_BLUETOOTH, SOCK_STREAM, 0, ends));
}

static int
protocol (void)
{
    return of_family (AF_INET, SOCK_STREAM, IPPROTO_SCTP);
}

static int
netlink (void)
{
    return of_family (AF_NETLINK, SOCK_RAW, 25);
}

static int
generic_netlink (void)
{
    struct {
        struct nlmsghdr header;
        struct genlmsghdr command;
        struct nlattr attribute;
        char name[16];
    } message = {
        .header = { .nlmsg_len = sizeof message, .nlmsg_type = GENL_ID_CTRL, .nlmsg_flags = NLM_F_REQUEST },
        .command = { .cmd = CTRL_CMD_GETFAMILY, .version = 1 },
        .attribute = { .nla_len = NLA_HDRLEN + 12, .nla_type = CTRL_ATTR_FAMILY_NAME },
        .name = "no-such-one",
    };
    int fd = socket (AF_NETLINK, SOCK_RAW, NETLINK_GENERIC);
    int err = fd < 0 ? errno : result (send (fd, &message, sizeof message, 0));

    (void)close (fd);
    return err;
}

static int
congestion (void)
{
    int fd = socket (AF_INET, SOCK_STREAM, 0);
    int err = fd < 0 ? errno : result (setsockopt (fd, IPPROTO_TCP, TCP_CONGESTION, "no-such-one", 11));

    (void)close (fd);
    return err;
}

/* ---- file systems, device nodes, programs */

static int
file_system (void)
{
    return result (mount ("none", "/run", "no-such-one", 0, NULL));
}

static int
file_system_context (void)
{
    int fd = (int)syscall (NR_FSOPEN, "no-such-other", 0);

    return result (fd);
}

static int
node (const char *path, mode_t mode, dev_t number)
{
    int err = result (mknod (path, mode | 0600, number));
    int fd;

    if (err != 0)
        return err;
    fd = open (path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    err = result (fd);
    (void)close (fd);
    (void)unlink (path);
    return err;
}

static int
character_device (void)
{
    return node ("/dev/shm/character", S_IFCHR, makedev (240, 0));
}

/* One that the test has made, in the host's /dev. */
static int
left_behind (void)
{
    int fd = open ("/dev/nvidia8", O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    int err = result (fd);

    (void)close (fd);
    return err;
}

static int
driver_device (void)
{
    return node ("/dev/nvidia7", S_IFCHR, makedev (195, 7));
}

static int
block_device (void)
{
    return node ("/dev/shm/block", S_IFBLK, makedev (240, 0));
}

static int
program_format (void)
{
    static char *arguments[] = { "program", NULL };

    (void)execve (getenv ("AUTOLOAD_PROGRAM"), arguments, environ);
    return errno;
}

static const struct {
    const char *name;
    int (*run) (void);
} attempts[] = {
    { "an ioctl of a socket's: VLANs (8021q)", vlan },
    { "an ioctl of a socket's: bridges (bridge)", bridge },
    { "an ioctl of a socket's: an interface by its name", interface },
    { "an ioctl of a terminal's: a line discipline (n_hdlc)", discipline },
    { "a socket of another family (can)", family },
    { "a pair of sockets of another family (bluetooth)", family_pair },
    { "a socket of another protocol (sctp)", protocol },
    { "a netlink socket of another protocol", netlink },
    { "a family of generic netlink", generic_netlink },
    { "a congestion control for TCP", congestion },
    { "mounting another file system", file_system },
    { "the same by fsopen", file_system_context },
    { "a new device node that no driver has registered", character_device },
    { "a new block device node of that kind", block_device },
    { "a new node of NVIDIA's, without a driver", driver_device },
    { "a node of NVIDIA's in the host's `/dev`, without a driver", left_behind },
    { "a program of another format", program_format },
};

/* Appends to `text` what came to the log since it had `start` bytes. */
static void
add_log (char *text, size_t length, off_t start)
{
    size_t used = strlen (text);
    int fd = open (LOG, O_RDONLY | O_CLOEXEC);
    ssize_t got;

    if (fd < 0)
        return;
    got = pread (fd, text + used, length - used - 1, start);
    text[used + (got > 0 ? (size_t)got : 0)] = '\0';
    (void)close (fd);
    for (char *c = text + used; *c != '\0'; c++)
        *c = *c == '\n' ? ' ' : *c;
}

static bool
attempt (unsigned int number, char *text, size_t length)
{
    struct stat log = { 0 };
    int err;

    if (number >= sizeof attempts / sizeof *attempts)
        return false;
    (void)stat (LOG, &log);
    err = attempts[number].run ();
    (void)snprintf (text, length, "%s\t%d\t", attempts[number].name, err);
    add_log (text, length, log.st_size);
    return true;
}

int nvmlInit_v2 (void);
int nvmlShutdown (void);
int nvmlSystemGetProcessName (unsigned int number, char *name, unsigned int length);

int
nvmlInit_v2 (void)
{
    return 0;
}

int
nvmlShutdown (void)
{
    return 0;
}

int
nvmlSystemGetProcessName (unsigned int number, char *name, unsigned int length)
{
    return attempt (number, name, length) ? 0 : 6; /* NVML_ERROR_NOT_FOUND */
}

int
main (void)
{
    char text[512];

    for (unsigned int i = 0; attempt (i, text, sizeof text); i++)
        (void)printf ("%s\n", text);
    return 0;
}
