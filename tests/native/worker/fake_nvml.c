/* SPDX-License-Identifier: Apache-2.0 */
/* A library with NVML's shape and nothing behind it, for the tests of what loads and calls it. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct fake_nested {
    uint64_t *values;
    uint64_t count;
    const char *name;
    const char *same_name;
    const char *kept;
    void *handles[2];
};

int nvmlInitWithFlags (unsigned flags);
int nvmlInit_v2 (void);
int nvmlShutdown (void);
int nvmlDeviceGetHandleByIndex_v2 (unsigned index, void **device);
int nvmlDeviceGetIndex (void *device, unsigned *index);
int nvmlEventSetCreate (void **set);
int nvmlEventSetFree (void *set);
const char *nvmlErrorString (int code);
int nvmlFakeInits (void);
int nvmlFakeSum (uint64_t a, uint64_t b, uint64_t c, uint64_t d, uint64_t e, uint64_t *sum);
int nvmlFakeNested (struct fake_nested *nested);
int nvmlFakeSleep (unsigned milliseconds);
uint64_t nvmlFakeUpperHalf (void);
int nvmlOnlyElsewhere (void); /* in a library of its own */

static int inits;
static char devices[8];
static char set_memory;

int
nvmlInitWithFlags (unsigned flags)
{
    (void)flags;
    (void)nvmlOnlyElsewhere ();
    (void)__atomic_add_fetch (&inits, 1, __ATOMIC_SEQ_CST);
    return 0;
}

int
nvmlInit_v2 (void)
{
    return nvmlInitWithFlags (0);
}

int
nvmlShutdown (void)
{
    if (__atomic_sub_fetch (&inits, 1, __ATOMIC_SEQ_CST) >= 0)
        return 0;
    (void)__atomic_add_fetch (&inits, 1, __ATOMIC_SEQ_CST);
    return 1;
}

int
nvmlFakeInits (void)
{
    return __atomic_load_n (&inits, __ATOMIC_SEQ_CST);
}

int
nvmlDeviceGetHandleByIndex_v2 (unsigned index, void **device)
{
    if (index >= sizeof devices || device == NULL)
        return 2;
    *device = &devices[index];
    return 0;
}

int
nvmlDeviceGetIndex (void *device, unsigned *index)
{
    if ((char *)device < devices || (char *)device >= devices + sizeof devices)
        abort (); /* as libraries crash on handles that they do not know */
    *index = (unsigned)((char *)device - devices);
    return 0;
}

/* Always the same address, as an allocator may do. */
int
nvmlEventSetCreate (void **set)
{
    *set = &set_memory;
    return 0;
}

int
nvmlEventSetFree (void *set)
{
    if (set != &set_memory)
        abort ();
    return 0;
}

const char *
nvmlErrorString (int code)
{
    static char endless[5000];

    if (code == 0)
        return "Success";
    if (code == 5000)
        return memset (endless, 'x', sizeof endless); /* no NUL at its end */
    return NULL;
}

int
nvmlFakeSum (uint64_t a, uint64_t b, uint64_t c, uint64_t d, uint64_t e, uint64_t *sum)
{
    *sum = a + 2 * b + 3 * c + 4 * d + 5 * e;
    return 0;
}

int
nvmlFakeNested (struct fake_nested *nested)
{
    static const char name[] = "a name of the library's";

    for (uint64_t i = 0; i < nested->count; i++)
        nested->values[i] *= 2;
    nested->values = NULL; /* a library may leave anything there */
    nested->name = name;
    nested->same_name = name;
    nested->handles[0] = &devices[7];
    nested->handles[1] = NULL;
    return 0;
}

int
nvmlFakeSleep (unsigned milliseconds)
{
    usleep (milliseconds * 1000);
    return 0;
}

uint64_t
nvmlFakeUpperHalf (void)
{
    return 0xdeadbeef00000007u;
}
