/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The plan comes from whoever started us, with our own rights, so it can ask for nothing that they could not do
 * themselves. It is checked as the worker checks its START, and by the same code, so that a plan of another version, or
 * something else that happens to be at that descriptor, is an error and no guess.
 */
#include "plan.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cleanup.h"
#include "error.h"

#define PLAN_MAX (16u << 20) /* above what execve takes */

static const uint32_t known_flags = NVS_RUN_LOCKDOWN | NVS_RUN_JSON | NVS_RUN_DEBUG | NVS_RUN_KEEP_PROPAGATION;
static const uint32_t known_steps = 1u << NVS_ISOLATION_MOUNT | 1u << NVS_ISOLATION_USER | 1u << NVS_ISOLATION_GUARD;

static int
bad (struct nvs_error *error, const char *what)
{
    return nvs_fail (error, NVS_STEP_HELLO, EBADMSG, NULL,
                     "%s: nvsandbox-run is started by nvsandbox, not by hand; if it was, reinstall nvsandbox", what);
}

/* The part before START: which bytes are what. `size` is the file's. */
static int
check_header (const struct nvs_run *run, size_t size, struct nvs_error *error)
{
    if (run->magic != NVS_RUN_MAGIC)
        return bad (error, "the plan does not begin as one");
    if ((run->flags & ~known_flags) != 0 || run->steps == 0 || (run->steps & ~known_steps) != 0)
        return bad (error, "the plan has flags or steps that are unknown");
    if (run->report < -1)
        return bad (error, "the plan names a descriptor that cannot be");
    if (run->start_len > NVS_MESSAGE_MAX || (uint64_t)sizeof *run + run->start_len + run->environment_len != size)
        return bad (error, "the plan is not as long as it says");
    return 0;
}

static int
take (struct nvs_plan *plan, const char *bytes, size_t size, struct nvs_error *error)
{
    static struct nvs_control control = { .socket = -1, .signals = -1, .fd = -1 };

    memcpy (&plan->run, bytes, sizeof plan->run);
    if (check_header (&plan->run, size, error) != 0)
        return -1;
    bytes += sizeof plan->run;
    if (plan->run.start_len < sizeof (struct nvs_message))
        return bad (error, "the plan has no START");
    control.length = plan->run.start_len;
    memcpy (control.packet, bytes, control.length);
    if (nvs_control_parse_start (&control, &plan->options, error) != 0)
        return -1;
    if (plan->run.environment_len == 0)
        return 0;
    bytes += plan->run.start_len;
    if (bytes[plan->run.environment_len - 1] != '\0')
        return bad (error, "the plan's environment does not end with a NUL");
    plan->environment = malloc (plan->run.environment_len);
    if (plan->environment == NULL)
        return nvs_fail (error, NVS_STEP_HELLO, ENOMEM, NULL, "no memory for the environment");
    memcpy (plan->environment, bytes, plan->run.environment_len);
    return 0;
}

int
nvs_plan_read (struct nvs_plan *plan, int fd_, struct nvs_error *error)
{
    __attribute__ ((cleanup (nvs_close_fd))) int fd = fd_;
    const int seals = F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW;
    struct stat st;
    char *bytes;
    int rc;
    int err;

    /* Sealed: what was checked is what is used, whoever else has the file. */
    if (fd < 0 || (fcntl (fd, F_GET_SEALS) & seals) != seals || fstat (fd, &st) != 0)
        return bad (error, "there is no plan");
    if (st.st_size < (off_t)sizeof plan->run || st.st_size > PLAN_MAX)
        return bad (error, "the plan is too short or too long");
    bytes = mmap (NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (bytes == MAP_FAILED) {
        err = errno;
        return nvs_fail (error, NVS_STEP_HELLO, err, NULL, "the plan cannot be read");
    }
    rc = take (plan, bytes, (size_t)st.st_size, error);
    (void)munmap (bytes, (size_t)st.st_size);
    return rc;
}

char **
nvs_plan_environment (const struct nvs_plan *plan)
{
    size_t count = 0;
    char **entries;

    for (uint32_t i = 0; i < plan->run.environment_len; i++)
        count += plan->environment[i] == '\0';
    entries = calloc (count + 1, sizeof *entries);
    if (entries == NULL)
        return NULL;
    count = 0;
    for (uint32_t at = 0; at < plan->run.environment_len; at += (uint32_t)strlen (plan->environment + at) + 1)
        entries[count++] = plan->environment + at;
    return entries;
}
