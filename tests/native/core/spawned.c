/* SPDX-License-Identifier: Apache-2.0 */
/* Started in the worker's place by test_spawn.c: tells over its control socket in what state it finds itself. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "protocol.h"

int
main (int argc, char **argv)
{
    const char *value = getenv ("NVSANDBOX_TEST");
    struct sigaction action;
    sigset_t mask;
    int blocked = 0;
    int ignored = 0;
    char text[256];
    int length;

    (void)sigprocmask (SIG_SETMASK, NULL, &mask);
    for (int number = 1; number < 32; number++) {
        blocked += sigismember (&mask, number) == 1;
        ignored += sigaction (number, NULL, &action) == 0 && action.sa_handler == SIG_IGN;
    }
    length =
        snprintf (text, sizeof text, "argc=%d name=%s leader=%d blocked=%d ignored=%d env=%s path=%d", argc, argv[0],
                  getsid (0) == getpid (), blocked, ignored, value != NULL ? value : "", getenv ("PATH") != NULL);
    return write (NVS_CONTROL_FD, text, (size_t)length) == length ? 7 : 8;
}
