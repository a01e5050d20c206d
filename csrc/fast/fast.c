/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nvsandbox._fast: the short way for calls whose types are known.
 *
 * The marshaller (nvsandbox/marshal.py) can carry any call, in some tens of microseconds, most of which go into finding out
 * from the arguments' types what a frame must say. A Function here remembers that, as a plan: the types of the arguments, and for
 * each where its bytes go. A call whose arguments are of exactly those types is written into the lane, waited for and
 * read back without a line of Python. Any other call, and whatever is out of the ordinary in it (no lane yet, another worker, a
 * deadline, a stale handle, a reply that is not plain), is left to the slow callable that each Function stands before: the
 * marshaller with all that belongs to it.
 *
 * Why a type of our own, and not a ctypes function object over a C function: ctypes converts the arguments, but keeps their types
 * and sizes to itself, so that a Python frame would have to stand around it, and it lets go of the interpreter's lock for
 * each call, which costs more than a cached value takes to come back. So this holds the lock for the first few microseconds of a
 * wait, and only then lets others run.
 *
 * ctypes objects are read where their memory pointer lies in them. No API tells, so calibrate() is given objects together with what
 * ctypes.addressof() says, and finds the one place in the object's own structure that fits all of them. If there is not exactly one,
 * there is no fast path.
 *
 * The interpreter's lock guards everything here but the lane's memory. The stable ABI of Python 3.10 is used, and vectorcall in addition,
 * whose names entered the stable ABI with 3.12, but which is the same since 3.9.
 */
#define Py_LIMITED_API 0x030a0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <structmember.h>
#include <string.h>

#include "../clock.h"
#include "../core/core.h"
#include "../core/histogram.h"
#include "block.h"
#include "../core/reply.h"

#define PLANS_MAX      4    /* for each function: pynvml passes one or two sets of types */
#define LEARN_MAX      64   /* in one worker; after so many, a function whose types keep changing goes the slow way */
#define HERE_MAX       4    /* sessions whose lanes a thread remembers */
#define SPIN_LOCKED_NS 4000 /* with the interpreter's lock; others get it at least every 5 ms anyway */
#define SLICE_NS       20000000
#define ERROR_UNKNOWN  999
#define TIMED_MAX      15 /* of calls that are answered at once one in 1 to so many is timed, 8 on average */

#ifndef Py_TPFLAGS_HAVE_VECTORCALL
#define Py_TPFLAGS_HAVE_VECTORCALL (1UL << 11)
#endif
typedef PyObject *(*vectorcall_t) (PyObject *, PyObject *const *, size_t, PyObject *);
#define NARGS_OF(nargsf) ((Py_ssize_t)((nargsf) & ~((size_t)1 << (8 * sizeof (size_t) - 1))))

/* ---- where things are in ctypes objects --------------------------------------------------------------- */

static Py_ssize_t place_memory; /* in any ctypes instance: the pointer to its memory */
static Py_ssize_t place_target; /* in what byref() makes: the object that it was given */
static Py_ssize_t place_value;  /* in the same: the address that it stands for */
static bool calibrated;

static PyObject *name_get;

static void *
word_at (PyObject *object, Py_ssize_t place)
{
    void *word;

    memcpy (&word, (const char *)object + place, sizeof word);
    return word;
}

/* The only place in `object`'s `size` bytes that holds `wanted`; -1 if none or several do, or another than `before`. */
static Py_ssize_t
find_word (PyObject *object, Py_ssize_t size, const void *wanted, Py_ssize_t before)
{
    Py_ssize_t found = -1;

    for (Py_ssize_t place = (Py_ssize_t)sizeof (PyObject); place + (Py_ssize_t)sizeof (void *) <= size;
         place += (Py_ssize_t)sizeof (void *)) {
        if (word_at (object, place) != wanted)
            continue;
        if (found >= 0)
            return -1;
        found = place;
    }
    return before == 0 || found == before ? found : -1;
}

/* calibrate (instances, references): instances are (object, address, basic size), references (byref, address, object,
 * basic size). True if every one of them fits the same places. */
static PyObject *
calibrate (PyObject *module, PyObject *args)
{
    PyObject *instances;
    PyObject *references;
    /* Their own until all is well: plans that are there already go on reading where they did. */
    Py_ssize_t memory = 0;
    Py_ssize_t target = 0;
    Py_ssize_t value = 0;

    (void)module;
    if (!PyArg_ParseTuple (args, "O!O!", &PyList_Type, &instances, &PyList_Type, &references))
        return NULL;
    calibrated = false;
    for (Py_ssize_t i = 0; i < PyList_Size (instances); i++) {
        PyObject *object;
        Py_ssize_t size;
        unsigned long long address;

        if (!PyArg_ParseTuple (PyList_GetItem (instances, i), "OKn", &object, &address, &size))
            return NULL;
        memory = find_word (object, size, (void *)(uintptr_t)address, memory);
        if (memory < 0)
            Py_RETURN_FALSE;
    }
    for (Py_ssize_t i = 0; i < PyList_Size (references); i++) {
        PyObject *reference;
        PyObject *object;
        Py_ssize_t size;
        unsigned long long address;

        if (!PyArg_ParseTuple (PyList_GetItem (references, i), "OKOn", &reference, &address, &object, &size))
            return NULL;
        value = find_word (reference, size, (void *)(uintptr_t)address, value);
        target = find_word (reference, size, object, target);
        if (value < 0 || target < 0)
            Py_RETURN_FALSE;
    }
    calibrated = memory > 0 && target > 0 && value > 0;
    if (calibrated) {
        place_memory = memory;
        place_target = target;
        place_value = value;
    }
    return PyBool_FromLong (calibrated);
}

/* ---- how long calls take ------------------------------------------------------------------------------ */

/*
 * Two looks at the clock cost 40 ns and more, a tenth of a whole call that is answered at once. So of those one in some is
 * timed, and stands for all since the last one; a call that has to wait looks at the clock anyway, and stands for itself. How
 * many are left out is not always the same: what calls functions in a fixed order would else have the same one timed each time.
 */
struct latency {
    uint64_t counts[NVS_LATENCY_SLOTS];
    uint64_t sum_ns;
    uint64_t last_ns;           /* of the last call that was answered at once and timed */
    unsigned long long untimed; /* calls that were answered at once since then */
    unsigned long long due;     /* the how manieth of them is timed */
    uint32_t chance;
};

static void
latency_count (struct latency *latency, uint64_t ns, uint64_t calls)
{
    latency->counts[nvs_latency_slot (ns)] += calls;
    latency->sum_ns += ns * calls;
}

/* A call that was answered at once, in `ns`; 0 if it was not timed. */
static void
latency_quick (struct latency *latency, uint64_t ns)
{
    latency->untimed++;
    if (ns == 0)
        return;
    latency->last_ns = ns;
    latency_count (latency, ns, latency->untimed);
    latency->untimed = 0;
    latency->chance = latency->chance * 1664525U + 1013904223U;
    latency->due = 1 + (latency->chance >> 16) % TIMED_MAX;
}

static void
latency_reset (struct latency *latency)
{
    memset (latency, 0, sizeof *latency);
    latency->due = 1; /* so that there is a last one before any stands for others */
}

/* ---- links: what a session tells the fast path -------------------------------------------------------- */

typedef struct {
    PyObject_HEAD unsigned long long serial; /* of the worker that calls go to; 0: none, take the slow way */
    unsigned long long epoch;                /* changes when a lane of the session is closed */
    unsigned long long calls;
    unsigned long long errors;
    struct latency latency;
    unsigned long long look_every; /* every so many calls one goes the slow way; 0: none has to */
    unsigned long long since_look;
    struct nvs_crowd crowd;
    int suspended;     /* deadlines are open in some threads, whose calls have other limits than the session's */
    PyObject *tokens;  /* what stands in this worker for handles of earlier ones; None if there is no worker */
    PyObject *limits;  /* the context variable with a tuple of those that are open where it is asked for */
    PyObject *waiting; /* waiting (owner, name, seconds): raises if waiting is of no more use */
    PyObject *abandon; /* abandon (owner[, name]): this lane, which is entered, is in the middle of something and never
                          used again; with a name the reply to that call was none, which it raises */
    PyObject *learn;   /* learn (function, arguments): after a call that went the slow way */
    PyObject *unknown; /* unknown (): NVML said Unknown Error */
} link_t;

/* This thread's lanes. A lane may be closed and freed by another thread, but only with the interpreter's lock and after
 * the link's epoch was changed: an entry whose epoch is not the link's is never followed. `owner` is the Python object
 * that the lane lives as long as; borrowed here, and held during a call. */
struct place {
    const link_t *link;
    unsigned long long serial;
    unsigned long long epoch;
    struct nvs_caller_lane *lane;
    PyObject *owner;
};
static _Thread_local struct place here[HERE_MAX];
static _Thread_local unsigned int here_next;

/* In a forked child: the lanes are the parent's, and their memory is not there. os.fork() has its hooks in Python for
 * that, but some programs fork in C and go on with Python in the child (uWSGI, which tells only if it is asked to). */
static void
forget_places (void)
{
    memset (here, 0, sizeof here);
}

/* Links come and go, and one may be made where another was; serials and epochs are never used twice. */
static unsigned long long last_epoch;

/* attach (serial, address, owner): a lane to that worker, which by now may not be the link's any more. */
static PyObject *
link_attach (link_t *self, PyObject *args)
{
    unsigned long long serial;
    unsigned long long address;
    PyObject *owner;
    unsigned int slot;

    if (!PyArg_ParseTuple (args, "KKO", &serial, &address, &owner))
        return NULL;
    if (!nvs_lane_is_one ((uintptr_t)address)) {
        PyErr_Format (PyExc_ValueError, "there is no lane at %llu: expected the address of one", address);
        return NULL;
    }
    for (slot = 0; slot < HERE_MAX; slot++)
        if (here[slot].link == self)
            break;
    if (slot == HERE_MAX)
        slot = here_next++ % HERE_MAX;
    here[slot].link = self;
    here[slot].serial = serial;
    here[slot].epoch = self->epoch;
    here[slot].lane = (struct nvs_caller_lane *)(uintptr_t)address;
    here[slot].owner = owner;
    Py_RETURN_NONE;
}

/* connect (serial, tokens): calls go to this worker from now on. In one step: another thread's call would else have the
 * tokens of one worker and go to another. */
static PyObject *
link_connect (link_t *self, PyObject *args)
{
    unsigned long long serial;
    PyObject *tokens;
    PyObject *before;

    if (!PyArg_ParseTuple (args, "KO!", &serial, &PyDict_Type, &tokens))
        return NULL;
    before = self->tokens;
    Py_INCREF (tokens);
    self->tokens = tokens;
    self->serial = serial;
    Py_XDECREF (before);
    Py_RETURN_NONE;
}

static PyObject *
link_invalidate (link_t *self, PyObject *nothing)
{
    (void)nothing;
    self->epoch = ++last_epoch;
    Py_RETURN_NONE;
}

/* latency (): (calls by slot, the sum of their nanoseconds). Those that nobody has timed yet count as the last one did, so
 * that there are as many as calls, and no count ever goes down. */
static PyObject *
link_latency (link_t *self, PyObject *nothing)
{
    struct latency *latency = &self->latency;
    PyObject *counts = PyTuple_New (NVS_LATENCY_SLOTS);

    (void)nothing;
    if (counts == NULL)
        return NULL;
    if (latency->untimed > 0) {
        latency_count (latency, latency->last_ns, latency->untimed);
        latency->untimed = 0;
    }
    for (uint32_t slot = 0; slot < NVS_LATENCY_SLOTS; slot++) {
        PyObject *count = PyLong_FromUnsignedLongLong (latency->counts[slot]);

        if (count == NULL) {
            Py_DECREF (counts);
            return NULL;
        }
        (void)PyTuple_SetItem (counts, (Py_ssize_t)slot, count);
    }
    return Py_BuildValue ("(NK)", counts, (unsigned long long)latency->sum_ns);
}

static PyObject *
link_reset (link_t *self, PyObject *nothing)
{
    (void)nothing;
    self->calls = 0;
    self->errors = 0;
    latency_reset (&self->latency);
    Py_RETURN_NONE;
}

static PyObject *
link_new (PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    allocfunc allocate = (allocfunc)PyType_GetSlot (type, Py_tp_alloc);
    PyObject *waiting;
    PyObject *abandon;
    PyObject *learn;
    PyObject *unknown;
    PyObject *limits;
    PyThreadState *thread;
    link_t *self;

    if (kwargs != NULL && PyDict_Size (kwargs) > 0)
        return PyErr_Format (PyExc_TypeError, "Link takes no keyword arguments");
    if (!PyArg_ParseTuple (args, "OOOOO", &waiting, &abandon, &learn, &unknown, &limits))
        return NULL;
    self = (link_t *)allocate (type, 0);
    if (self == NULL)
        return NULL;
    self->epoch = ++last_epoch;
    latency_reset (&self->latency);
    /* It reads files, and whoever answers for a file system may need the interpreter's lock. */
    thread = PyEval_SaveThread ();
    self->crowd.looking_max = nvs_looking_max ();
    PyEval_RestoreThread (thread);
    Py_INCREF (waiting);
    self->waiting = waiting;
    Py_INCREF (abandon);
    self->abandon = abandon;
    Py_INCREF (learn);
    self->learn = learn;
    Py_INCREF (unknown);
    self->unknown = unknown;
    Py_INCREF (limits);
    self->limits = limits;
    Py_INCREF (Py_None);
    self->tokens = Py_None;
    return (PyObject *)self;
}

static int
link_traverse (link_t *self, visitproc visit, void *arg)
{
    Py_VISIT (Py_TYPE (self));
    Py_VISIT (self->waiting);
    Py_VISIT (self->abandon);
    Py_VISIT (self->learn);
    Py_VISIT (self->unknown);
    Py_VISIT (self->limits);
    Py_VISIT (self->tokens);
    return 0;
}

static int
link_clear (link_t *self)
{
    self->serial = 0; /* the slow way for whoever still calls, in a finalizer */
    Py_CLEAR (self->waiting);
    Py_CLEAR (self->abandon);
    Py_CLEAR (self->learn);
    Py_CLEAR (self->unknown);
    Py_CLEAR (self->limits);
    Py_CLEAR (self->tokens);
    return 0;
}

static void
link_dealloc (link_t *self)
{
    PyTypeObject *type = Py_TYPE (self);
    freefunc release = (freefunc)PyType_GetSlot (type, Py_tp_free);

    PyObject_GC_UnTrack (self);
    (void)link_clear (self);
    release (self);
    Py_DECREF (type);
}

static PyMemberDef link_members[] = {
    { "serial", T_ULONGLONG, offsetof (link_t, serial), 0, "of the worker that calls go to; 0: none" },
    { "calls", T_ULONGLONG, offsetof (link_t, calls), READONLY, "calls that went the short way" },
    { "errors", T_ULONGLONG, offsetof (link_t, errors), READONLY,
      "those of them that NVML did not answer with success" },
    { "timed_after", T_ULONGLONG, offsetof (link_t, latency) + offsetof (struct latency, due), 0,
      "after so many calls that are answered at once the next is timed; for measurements of what that costs" },
    { "look_every", T_ULONGLONG, offsetof (link_t, look_every), 0,
      "one call of so many goes the slow way; 0: none has to" },
    { "looking_max", T_INT, offsetof (link_t, crowd) + offsetof (struct nvs_crowd, looking_max), READONLY,
      "how many calls at once may wait by looking" },
    { "suspended", T_INT, offsetof (link_t, suspended), READONLY, "how many deadlines are open, in whatever thread" },
    { NULL, 0, 0, 0, NULL },
};

/* A method, for in Python reading and writing are two steps, between which another thread may come. */
static PyObject *
link_suspend (link_t *self, PyObject *change)
{
    long by = PyLong_AsLong (change);

    if (by == -1 && PyErr_Occurred () != NULL)
        return NULL;
    self->suspended += (int)by;
    Py_RETURN_NONE;
}

/* Whether this thread, or asyncio task, is in a deadline's block: 1, 0, or -1 with an exception. */
static int
limited_here (link_t *self)
{
    PyObject *open = PyObject_CallMethodObjArgs (self->limits, name_get, NULL);
    Py_ssize_t count;

    if (open == NULL)
        return -1;
    count = PyTuple_Size (open);
    Py_DECREF (open);
    return count < 0 ? -1 : count > 0;
}

static PyMethodDef link_methods[] = {
    { "suspend", (PyCFunction)(void (*) (void))link_suspend, METH_O,
      "suspend (change): so many deadlines more, or fewer, are open; their threads' calls go the slow way" },
    { "attach", (PyCFunction)(void (*) (void))link_attach, METH_VARARGS,
      "attach (serial, address, owner): this thread's lane to a worker, and the object that it lives as long as" },
    { "connect", (PyCFunction)(void (*) (void))link_connect, METH_VARARGS,
      "connect (serial, tokens): the worker that calls go to, and what stands in it for handles of earlier ones" },
    { "invalidate", (PyCFunction)(void (*) (void))link_invalidate, METH_NOARGS,
      "invalidate (): no thread uses the lane that it has attached any more" },
    { "latency", (PyCFunction)(void (*) (void))link_latency, METH_NOARGS,
      "latency (): (calls by slot, the sum of their nanoseconds); see csrc/core/histogram.h" },
    { "reset", (PyCFunction)(void (*) (void))link_reset, METH_NOARGS, "reset (): counts from 0 again" },
    { NULL, NULL, 0, NULL },
};

static PyType_Slot link_slots[] = {
    { Py_tp_new, (void *)link_new },
    { Py_tp_dealloc, (void *)link_dealloc },
    { Py_tp_traverse, (void *)link_traverse },
    { Py_tp_clear, (void *)link_clear },
    { Py_tp_members, link_members },
    { Py_tp_methods, link_methods },
    { 0, NULL },
};

static PyType_Spec link_spec = {
    .name = "nvsandbox._fast.Link",
    .basicsize = (int)sizeof (link_t),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .slots = link_slots,
};

static PyTypeObject *link_type;

/* ---- plans -------------------------------------------------------------------------------------------- */

enum arg_kind {
    ARG_NONE = 0,
    ARG_INT = 1,    /* a Python int: a C int */
    ARG_SCALAR = 2, /* a ctypes number */
    ARG_HANDLE = 3, /* a pointer to a structure without fields: a token */
    ARG_BYREF = 4,  /* byref (object): its memory, both ways */
    ARG_MEMORY = 5, /* an array: its memory, both ways */
};

struct plan_arg {
    enum arg_kind kind;
    PyTypeObject *type;   /* exactly this one; of the object itself */
    PyTypeObject *target; /* BYREF: of what it refers to */
    uint32_t size;        /* SCALAR, BYREF, MEMORY: bytes */
    uint32_t offset;      /* BYREF, MEMORY: in the data */
    int is_signed;        /* SCALAR */
};

struct plan {
    int users; /* its function, and the calls that are under way: a wait lets others run, who may replace it */
    int count;
    struct plan_arg args[NVS_ARGS_MAX];
    uint32_t data_len;
    uint32_t head_len; /* of the request before its data */
    unsigned char *head;
};

static void
plan_release (struct plan *plan)
{
    if (--plan->users > 0)
        return;
    for (int i = 0; i < plan->count; i++) {
        Py_XDECREF (plan->args[i].type);
        Py_XDECREF (plan->args[i].target);
    }
    PyMem_Free (plan->head);
    PyMem_Free (plan);
}

/* ---- functions ---------------------------------------------------------------------------------------- */

typedef struct {
    PyObject_HEAD vectorcall_t vectorcall;
    PyObject *name;
    PyObject *slow;
    link_t *link;
    unsigned long long serial; /* of the worker whose function number is in the plans */
    int plain; /* 0: an attribute was set, such as restype, or the block has ended: the slow way for good */
    unsigned long long learned_for; /* the worker that `learned` is about: with each one all starts anew */
    int learned;
    struct nvs_pace pace;
    int plans_count;
    struct plan *plans[PLANS_MAX]; /* the last that fitted is the first */
} function_t;

/* Whether a call that went the slow way may have something to teach. */
static bool
learns (function_t *self)
{
    if (!calibrated || !self->plain)
        return false;
    if (self->learned_for != self->link->serial) {
        self->learned_for = self->link->serial;
        self->learned = 0;
    }
    if (self->learned >= LEARN_MAX)
        return false;
    self->learned++;
    return true;
}

/* The slow callable, borrowed; NULL with an exception after the garbage collector has been here. */
static PyObject *
slow_of (const function_t *self)
{
    if (self->slow == NULL)
        PyErr_SetString (PyExc_RuntimeError, "this function is no more");
    return self->slow;
}

/* `is_new`: no plan was there for it. What goes this way for another reason has nothing to teach. */
static PyObject *
call_slow (function_t *self, PyObject *const *args, Py_ssize_t count, PyObject *names, bool is_new)
{
    PyObject *slow = slow_of (self);
    PyObject *tuple = slow != NULL ? PyTuple_New (count) : NULL;
    PyObject *keywords = NULL;
    PyObject *result;

    if (tuple == NULL)
        return NULL;
    for (Py_ssize_t i = 0; i < count; i++) {
        Py_INCREF (args[i]);
        (void)PyTuple_SetItem (tuple, i, args[i]);
    }
    if (names != NULL && PyTuple_Size (names) > 0) {
        keywords = PyDict_New ();
        for (Py_ssize_t i = 0; keywords != NULL && i < PyTuple_Size (names); i++)
            if (PyDict_SetItem (keywords, PyTuple_GetItem (names, i), args[count + i]) < 0)
                Py_CLEAR (keywords);
        if (keywords == NULL) {
            Py_DECREF (tuple);
            return NULL;
        }
    }
    result = PyObject_Call (slow, tuple, keywords);
    if (result != NULL && keywords == NULL && is_new && learns (self)) {
        PyObject *learned = PyObject_CallFunctionObjArgs (self->link->learn, self, tuple, NULL);

        Py_XDECREF (learned);
        if (learned == NULL)
            Py_CLEAR (result);
    }
    Py_XDECREF (keywords);
    Py_DECREF (tuple);
    return result;
}

/* The arguments of one call, as far as they fit a plan. */
struct given {
    uint64_t registers[NVS_ARGS_MAX];
    PyObject *owners[NVS_ARGS_MAX]; /* of the memory, borrowed: the caller holds the arguments */
    void *memory[NVS_ARGS_MAX];
};

static bool
take_int (PyObject *object, uint64_t *value)
{
    int overflow = 0;
    long long number = PyLong_AsLongLongAndOverflow (object, &overflow);

    if (overflow != 0 || (number == -1 && PyErr_Occurred () != NULL)) {
        PyErr_Clear ();
        return false;
    }
    if (nvs_token_is ((uint64_t)number)) /* a handle as a number: the marshaller's */
        return false;
    /* As ctypes has it: the lower 32 bits, a C int. */
    *value = (uint64_t)(int64_t)(int32_t)(uint32_t)(uint64_t)number;
    return true;
}

static bool
take_scalar (PyObject *object, const struct plan_arg *arg, uint64_t *value)
{
    const void *memory = word_at (object, place_memory);
    uint64_t bits = 0;

    if (memory == NULL)
        return false;
    memcpy (&bits, memory, arg->size); /* little-endian, as x86-64 and the aarch64 that NVIDIA supports are */
    if (arg->is_signed && arg->size < 8 && (bits >> (8 * arg->size - 1)) != 0)
        bits |= UINT64_MAX << (8 * arg->size);
    *value = bits;
    return arg->kind == ARG_HANDLE || !nvs_token_is (bits);
}

static bool
overlap (const void *one, size_t one_size, const void *other, size_t other_size)
{
    const uintptr_t a = (uintptr_t)one;
    const uintptr_t b = (uintptr_t)other;

    return a == b || (a < b ? b - a < one_size : a - b < other_size);
}

static bool
fits (const struct plan *plan, PyObject *const *args, Py_ssize_t count, struct given *given)
{
    if (count != plan->count)
        return false;
    for (int i = 0; i < plan->count; i++) {
        const struct plan_arg *arg = &plan->args[i];
        PyObject *object = args[i];

        if (Py_TYPE (object) != arg->type)
            return false;
        given->memory[i] = NULL;
        switch (arg->kind) {
        case ARG_NONE: given->registers[i] = 0; break;
        case ARG_INT:
            if (!take_int (object, &given->registers[i]))
                return false;
            break;
        case ARG_SCALAR:
        case ARG_HANDLE:
            if (!take_scalar (object, arg, &given->registers[i]))
                return false;
            break;
        case ARG_BYREF:
            given->owners[i] = word_at (object, place_target);
            if (given->owners[i] == NULL || Py_TYPE (given->owners[i]) != arg->target)
                return false;
            given->memory[i] = word_at (given->owners[i], place_memory);
            /* byref (object, offset) is something else. */
            if (given->memory[i] == NULL || given->memory[i] != word_at (object, place_value))
                return false;
            break;
        case ARG_MEMORY:
            given->owners[i] = object;
            given->memory[i] = word_at (object, place_memory);
            if (given->memory[i] == NULL)
                return false;
            break;
        default: return false;
        }
        /* What overlaps is one memory to NVML, too: the marshaller sees to that. */
        for (int j = 0; given->memory[i] != NULL && j < i; j++)
            if (given->memory[j] != NULL && overlap (given->memory[i], arg->size, given->memory[j], plan->args[j].size))
                return false;
    }
    return true;
}

static bool
same_types (const struct plan *one, const struct plan *other)
{
    if (one->count != other->count)
        return false;
    for (int i = 0; i < one->count; i++)
        if (one->args[i].type != other->args[i].type || one->args[i].target != other->args[i].target)
            return false;
    return true;
}

/* Callers keep their handles for longer than a worker lives. False, without an exception: that is for the slow way. */
static bool
replace_handles (PyObject *tokens, const struct plan *plan, struct given *given)
{
    for (int i = 0; i < plan->count; i++) {
        PyObject *old;
        PyObject *present;

        if (plan->args[i].kind != ARG_HANDLE)
            continue;
        old = PyLong_FromUnsignedLongLong (given->registers[i]);
        if (old == NULL) {
            PyErr_Clear ();
            return false;
        }
        present = PyDict_GetItemWithError (tokens, old);
        Py_DECREF (old);
        if (present != NULL)
            given->registers[i] = PyLong_AsUnsignedLongLong (present);
        if (PyErr_Occurred () != NULL) {
            PyErr_Clear ();
            return false;
        }
    }
    return true;
}

static struct plan *
find_plan (function_t *self, PyObject *const *args, Py_ssize_t count, struct given *given)
{
    for (int i = 0; i < self->plans_count; i++) {
        struct plan *plan = self->plans[i];

        if (!fits (plan, args, count, given))
            continue;
        if (i > 0) {
            memmove (&self->plans[1], &self->plans[0], (size_t)i * sizeof self->plans[0]);
            self->plans[0] = plan;
        }
        return plan;
    }
    return NULL;
}

static const struct place *
find_lane (const link_t *link)
{
    for (unsigned int slot = 0; slot < HERE_MAX; slot++)
        if (here[slot].link == link)
            return here[slot].serial == link->serial && here[slot].epoch == link->epoch ? &here[slot] : NULL;
    return NULL;
}

static void
write_request (const struct plan *plan, const struct given *given, unsigned char *frame)
{
    struct nvs_request *request = (struct nvs_request *)(void *)frame;
    unsigned char *data = frame + plan->head_len;

    memcpy (frame, plan->head, plan->head_len);
    for (int i = 0; i < plan->count; i++) {
        const struct plan_arg *arg = &plan->args[i];

        if (given->memory[i] != NULL)
            memcpy (data + arg->offset, given->memory[i], arg->size);
        else
            request->args[i].value = given->registers[i];
    }
}

enum waited {
    REPLY_IS_THERE,
    REQUEST_NOT_SENT, /* the worker is gone, and had not begun with it */
    WAIT_FAILED,      /* an exception is set */
};

/* Waits for the reply. Whether the request was sent says the return value of `waiting` and no exception: one may come out
 * of a signal handler, about a call of its own. *since is when the request was sent,
 * where that had to be found out, within a microsecond. */
static enum waited
await (function_t *self, PyObject *owner, struct nvs_caller_lane *lane, int64_t *since)
{
    struct nvs_crowd *crowd = &self->link->crowd;
    const bool quick = self->pace.usual_ns < 2 * SPIN_LOCKED_NS;
    struct nvs_pace pace;
    int64_t start;

    /* Not for a function that is known to take longer: others may want the interpreter. */
    if (quick && nvs_lane_spin (lane, SPIN_LOCKED_NS))
        return REPLY_IS_THERE;
    start = nvs_now_ns ();
    *since = quick && nvs_lane_spins (lane) ? start - SPIN_LOCKED_NS : start;
    for (;;) {
        PyThreadState *state;
        PyObject *seconds;
        PyObject *unsent;
        bool was_sent;
        int there;

        pace = self->pace; /* our own while others run, who may call the same */
        crowd->waiting++;
        state = PyEval_SaveThread ();
        there = nvs_lane_await (lane, &pace, crowd, start, SLICE_NS);
        PyEval_RestoreThread (state);
        crowd->waiting--;
        self->pace = pace;
        if (there)
            return REPLY_IS_THERE;
        if (PyErr_CheckSignals () < 0)
            return WAIT_FAILED;
        seconds = PyFloat_FromDouble ((double)(nvs_now_ns () - start) / 1e9);
        if (seconds == NULL)
            return WAIT_FAILED;
        unsent = PyObject_CallFunctionObjArgs (self->link->waiting, owner, self->name, seconds, NULL);
        Py_DECREF (seconds);
        if (unsent == NULL)
            return WAIT_FAILED;
        was_sent = unsent != Py_True;
        Py_DECREF (unsent);
        if (!was_sent)
            return REQUEST_NOT_SENT;
    }
}

/* For whoever has entered it, and nobody leaves it any more: what runs first in any Python function may be a signal
 * handler, whose own call would write over a request that the worker is about to read, or has yet to answer in that
 * place. */
static void
give_up_lane (const link_t *link, PyObject *owner)
{
    PyObject *type;
    PyObject *value;
    PyObject *traceback;
    PyObject *done;

    PyErr_Fetch (&type, &value, &traceback);
    done = PyObject_CallFunctionObjArgs (link->abandon, owner, NULL);
    if (done == NULL) {
        /* Out of a signal handler: that goes on, as from a finally block, and what it kept from being done is done. */
        Py_XDECREF (type);
        Py_XDECREF (value);
        Py_XDECREF (traceback);
        PyErr_Fetch (&type, &value, &traceback);
        done = PyObject_CallFunctionObjArgs (link->abandon, owner, NULL);
        if (done == NULL)
            PyErr_Clear ();
    }
    Py_XDECREF (done);
    PyErr_Restore (type, value, traceback);
}

/* Takes the reply apart; see there for what may be in it. */
static enum nvs_answer_kind
read_reply (const struct plan *plan, struct given *given, const unsigned char *frame, uint32_t length, int32_t *result)
{
    const unsigned char *data;
    enum nvs_answer_kind kind = nvs_reply_read (frame, length, plan->data_len, result, &data);

    for (int i = 0; data != NULL && i < plan->count; i++) {
        const struct plan_arg *arg = &plan->args[i];

        /* ctypes.resize () in another thread may have moved it. */
        if (given->memory[i] != NULL)
            memcpy (word_at (given->owners[i], place_memory), data + arg->offset, arg->size);
    }
    return kind;
}

enum outcome {
    ANSWERED,
    NOT_CARRIED_OUT, /* the slow way can have it */
    FAILED,          /* an exception is set */
};

static enum outcome
call_fast (function_t *self, const struct plan *plan, struct given *given, const struct place *place, int32_t *result)
{
    struct nvs_caller_lane *lane = place->lane; /* a signal handler's call may take this thread's place */
    PyObject *owner = place->owner;
    struct latency *latency = &self->link->latency;
    const int64_t begun = latency->untimed + 1 >= latency->due ? nvs_now_ns () : 0;
    unsigned char *frame = nvs_lane_frame (lane);
    enum nvs_answer_kind kind;
    int64_t since = 0;
    PyObject *done;
    enum waited waited;

    write_request (plan, given, frame);
    nvs_lane_send (lane, plan->head_len + plan->data_len);
    waited = await (self, owner, lane, &since);
    if (waited != REPLY_IS_THERE) {
        give_up_lane (self->link, owner);
        return PyErr_Occurred () == NULL ? NOT_CARRIED_OUT : FAILED;
    }
    kind = read_reply (plan, given, frame, nvs_lane_reply_length (lane), result);
    if (kind != NVS_NO_ANSWER)
        nvs_lane_leave (lane);
    if (kind == NVS_ANSWERED) {
        if (since != 0)
            latency_count (latency, (uint64_t)(nvs_now_ns () - (begun != 0 ? begun : since)), 1);
        else
            latency_quick (latency, begun != 0 ? (uint64_t)(nvs_now_ns () - begun) : 0);
        return ANSWERED;
    }
    if (kind != NVS_NO_ANSWER)
        return NOT_CARRIED_OUT;
    give_up_lane (self->link, owner);
    if (PyErr_Occurred () != NULL) /* out of a signal handler */
        return FAILED;
    /* Raises: the worker is of no more use. */
    done = PyObject_CallFunctionObjArgs (self->link->abandon, owner, self->name, NULL);
    Py_XDECREF (done);
    if (done != NULL)
        PyErr_SetString (PyExc_RuntimeError, "the NVML worker answered what no worker answers");
    return FAILED;
}

static PyObject *
function_call (PyObject *object, PyObject *const *args, size_t nargsf, PyObject *names)
{
    function_t *self = (function_t *)object;
    link_t *link = self->link;
    Py_ssize_t count = NARGS_OF (nargsf);
    const struct place *place;
    PyObject *owner;
    struct given given;
    struct plan *plan;
    enum outcome outcome;
    int32_t result = 0;

    if (names != NULL || !self->plain || link->serial == 0 || self->serial != link->serial)
        return call_slow (self, args, count, names, true);
    if (link->suspended != 0) {
        int limited = limited_here (link);

        if (limited < 0)
            return NULL;
        if (limited)
            return call_slow (self, args, count, names, false);
    }
    if (link->look_every != 0 && ++link->since_look >= link->look_every) {
        link->since_look = 0;
        return call_slow (self, args, count, names, false);
    }
    plan = find_plan (self, args, count, &given);
    if (plan == NULL)
        return call_slow (self, args, count, names, true);
    if (PyDict_Check (link->tokens) && PyDict_Size (link->tokens) > 0 && !replace_handles (link->tokens, plan, &given))
        return call_slow (self, args, count, names, false);
    place = find_lane (link);
    /* Busy: a signal handler or a finalizer, in the middle of this thread's other call. */
    if (place == NULL || !nvs_lane_enter (place->lane))
        return call_slow (self, args, count, names, false);

    /* A wait lets others run, who may end the session and all that belongs to it. */
    owner = place->owner;
    Py_INCREF (owner);
    plan->users++;
    outcome = call_fast (self, plan, &given, place, &result);
    plan_release (plan);
    Py_DECREF (owner);
    switch (outcome) {
    case NOT_CARRIED_OUT: return call_slow (self, args, count, names, false);
    case FAILED: return NULL;
    case ANSWERED: break;
    }
    link->calls++;
    if (result != 0) {
        link->errors++;
        if (result == ERROR_UNKNOWN) {
            PyObject *hint = PyObject_CallFunctionObjArgs (link->unknown, NULL);

            if (hint == NULL)
                return NULL;
            Py_DECREF (hint);
        }
    }
    return PyLong_FromLong (result);
}

static PyObject *
function_tp_call (PyObject *self, PyObject *args, PyObject *kwargs)
{
    PyObject *items[NVS_ARGS_MAX];
    Py_ssize_t count = PyTuple_Size (args);

    if ((kwargs != NULL && PyDict_Size (kwargs) > 0) || count > (Py_ssize_t)NVS_ARGS_MAX) {
        PyObject *slow = slow_of ((function_t *)self);

        return slow != NULL ? PyObject_Call (slow, args, kwargs) : NULL;
    }
    for (Py_ssize_t i = 0; i < count; i++)
        items[i] = PyTuple_GetItem (args, i);
    return function_call (self, items, (size_t)count, NULL);
}

/* learn (serial, head, data_len, arguments): a plan for calls to the worker `serial`. `head` is the request before its data, and
 * `arguments` a tuple of (kind, type, type of the target or None, size, offset, signed). */
static PyObject *
function_learn (function_t *self, PyObject *args)
{
    unsigned long long serial;
    const char *head;
    Py_ssize_t head_len;
    unsigned int data_len;
    PyObject *arguments;
    struct plan *plan;

    if (!PyArg_ParseTuple (args, "Ky#IO!", &serial, &head, &head_len, &data_len, &PyTuple_Type, &arguments))
        return NULL;
    if (PyTuple_Size (arguments) > (Py_ssize_t)NVS_ARGS_MAX || head_len < (Py_ssize_t)sizeof (struct nvs_request)
        || (uint64_t)head_len + data_len > NVS_LANE_FRAME
        || sizeof (struct nvs_reply) + (uint64_t)data_len > NVS_LANE_FRAME)
        return PyErr_Format (PyExc_ValueError, "a plan that no lane has room for");
    plan = PyMem_Calloc (1, sizeof *plan);
    if (plan == NULL)
        return PyErr_NoMemory ();
    plan->users = 1;
    for (Py_ssize_t i = 0; i < PyTuple_Size (arguments); i++) {
        struct plan_arg *arg = &plan->args[i];
        PyObject *type;
        PyObject *target;
        int kind;

        if (!PyArg_ParseTuple (PyTuple_GetItem (arguments, i), "iO!OIIp", &kind, &PyType_Type, &type, &target,
                               &arg->size, &arg->offset, &arg->is_signed))
            goto fail;
        if (kind < ARG_NONE || kind > ARG_MEMORY || (kind == ARG_BYREF) != (PyType_Check (target) != 0)
            || ((kind == ARG_SCALAR || kind == ARG_HANDLE) && (arg->size < 1 || arg->size > 8))
            || ((kind == ARG_BYREF || kind == ARG_MEMORY) && (uint64_t)arg->offset + arg->size > data_len)) {
            PyErr_Format (PyExc_ValueError, "argument %d of a plan is not well-formed", (int)i);
            goto fail;
        }
        arg->kind = (enum arg_kind)kind;
        Py_INCREF (type);
        arg->type = (PyTypeObject *)type;
        if (kind == ARG_BYREF) {
            Py_INCREF (target);
            arg->target = (PyTypeObject *)target;
        }
        plan->count++;
    }
    plan->data_len = data_len;
    plan->head_len = (uint32_t)head_len;
    plan->head = PyMem_Malloc ((size_t)head_len);
    if (plan->head == NULL) {
        PyErr_NoMemory ();
        goto fail;
    }
    memcpy (plan->head, head, (size_t)head_len);

    /* Another worker numbers its functions anew. */
    if (self->serial != serial) {
        while (self->plans_count > 0)
            plan_release (self->plans[--self->plans_count]);
        self->serial = serial;
    }
    /* Two threads may have met the same types at the same time. */
    for (int i = 0; i < self->plans_count; i++) {
        if (same_types (self->plans[i], plan)) {
            plan_release (self->plans[i]);
            self->plans[i] = plan;
            Py_RETURN_NONE;
        }
    }
    if (self->plans_count == PLANS_MAX)
        plan_release (self->plans[--self->plans_count]);
    memmove (&self->plans[1], &self->plans[0], (size_t)self->plans_count * sizeof self->plans[0]);
    self->plans[0] = plan;
    self->plans_count++;
    Py_RETURN_NONE;
fail:
    plan_release (plan);
    return NULL;
}

static PyObject *
function_forget (function_t *self, PyObject *nothing)
{
    (void)nothing;
    self->plain = 0;
    Py_RETURN_NONE;
}

static PyObject *
function_new (PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    allocfunc allocate = (allocfunc)PyType_GetSlot (type, Py_tp_alloc);
    function_t *self;
    PyObject *name;
    PyObject *slow;
    PyObject *link;

    if (kwargs != NULL && PyDict_Size (kwargs) > 0)
        return PyErr_Format (PyExc_TypeError, "Function takes no keyword arguments");
    if (!PyArg_ParseTuple (args, "UOO!", &name, &slow, link_type, &link))
        return NULL;
    self = (function_t *)allocate (type, 0);
    if (self == NULL)
        return NULL;
    self->vectorcall = function_call;
    Py_INCREF (name);
    self->name = name;
    Py_INCREF (slow);
    self->slow = slow;
    Py_INCREF (link);
    self->link = (link_t *)link;
    self->plain = 1;
    return (PyObject *)self;
}

static int
function_traverse (function_t *self, visitproc visit, void *arg)
{
    Py_VISIT (Py_TYPE (self));
    Py_VISIT (self->slow);
    Py_VISIT (self->link);
    /* Not the plans' types: a plan that is in use is not this function's alone, and ctypes' types do not refer to it. */
    return 0;
}

static int
function_clear (function_t *self)
{
    self->plain = 0;
    while (self->plans_count > 0)
        plan_release (self->plans[--self->plans_count]);
    Py_CLEAR (self->slow);
    Py_CLEAR (self->link);
    return 0;
}

static void
function_dealloc (function_t *self)
{
    PyTypeObject *type = Py_TYPE (self);
    freefunc release = (freefunc)PyType_GetSlot (type, Py_tp_free);

    PyObject_GC_UnTrack (self);
    (void)function_clear (self);
    Py_CLEAR (self->name);
    release (self);
    Py_DECREF (type);
}

/* What is not found here is the slow callable's: restype, argtypes, errcheck, __name__. */
static PyObject *
function_getattro (PyObject *object, PyObject *name)
{
    PyObject *value = PyObject_GenericGetAttr (object, name);
    PyObject *slow;

    if (value != NULL || !PyErr_ExceptionMatches (PyExc_AttributeError))
        return value;
    PyErr_Clear ();
    slow = slow_of ((function_t *)object);
    return slow != NULL ? PyObject_GetAttr (slow, name) : NULL;
}

/* Whoever sets restype, argtypes or errcheck has calls that only the slow callable can make. */
static int
function_setattro (PyObject *object, PyObject *name, PyObject *value)
{
    function_t *self = (function_t *)object;
    PyObject *slow = slow_of (self);

    self->plain = 0;
    return slow != NULL ? PyObject_SetAttr (slow, name, value) : -1;
}

static PyObject *
function_repr (PyObject *object)
{
    PyObject *slow = slow_of ((function_t *)object);

    return slow != NULL ? PyObject_Repr (slow) : NULL;
}

static PyMemberDef function_members[] = {
    { "__vectorcalloffset__", T_PYSSIZET, offsetof (function_t, vectorcall), READONLY, NULL },
    { "plans", T_INT, offsetof (function_t, plans_count), READONLY, "how many sets of types are known" },
    { NULL, 0, 0, 0, NULL },
};

static PyMethodDef function_methods[] = {
    { "learn", (PyCFunction)(void (*) (void))function_learn, METH_VARARGS,
      "learn (serial, head, data_len, arguments): calls with these types can go the short way" },
    { "forget", (PyCFunction)(void (*) (void))function_forget, METH_NOARGS,
      "forget (): all calls go the slow way from now on" },
    { NULL, NULL, 0, NULL },
};

static PyType_Slot function_slots[] = {
    { Py_tp_new, (void *)function_new },
    { Py_tp_dealloc, (void *)function_dealloc },
    { Py_tp_traverse, (void *)function_traverse },
    { Py_tp_clear, (void *)function_clear },
    { Py_tp_call, (void *)function_tp_call },
    { Py_tp_getattro, (void *)function_getattro },
    { Py_tp_setattro, (void *)function_setattro },
    { Py_tp_repr, (void *)function_repr },
    { Py_tp_members, function_members },
    { Py_tp_methods, function_methods },
    { 0, NULL },
};

static PyType_Spec function_spec = {
    .name = "nvsandbox._fast.Function",
    .basicsize = (int)sizeof (function_t),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
    .slots = function_slots,
};

/* ---- module ------------------------------------------------------------------------------------------- */

static PyMethodDef methods[] = {
    { "calibrate", calibrate, METH_VARARGS,
      "calibrate (instances, references): finds where ctypes objects have their memory. Without success there is no short way." },
    { NULL, NULL, 0, NULL },
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, .m_name = "nvsandbox._fast", .m_doc = "The short way for calls whose types are known.",
    .m_size = -1,          .m_methods = methods,
};

PyMODINIT_FUNC PyInit__fast (void); /* Python's headers declare no module's */

PyMODINIT_FUNC
PyInit__fast (void)
{
    static bool told; /* of forks */
    PyObject *module = PyModule_Create (&definition);
    PyObject *link;
    PyObject *function;

    if (module == NULL)
        return NULL;
    if (!told && pthread_atfork (NULL, NULL, forget_places) != 0) {
        Py_DECREF (module);
        return PyErr_NoMemory ();
    }
    told = true;
    name_get = nvs_name ("get");
    if (name_get == NULL) {
        Py_DECREF (module);
        return NULL;
    }
    link = PyType_FromSpec (&link_spec);
    function = PyType_FromSpec (&function_spec);
    if (link == NULL || function == NULL || PyModule_AddStringConstant (module, "version", NVSANDBOX_VERSION) < 0
        || PyModule_AddObject (module, "Link", link) < 0)
        goto fail;
    link_type = (PyTypeObject *)link;
    Py_INCREF (link); /* ours; the module has the other */
    link = NULL;
    if (PyModule_AddObject (module, "Function", function) < 0)
        goto fail;
    function = NULL;
    if (nvs_block_add (module) < 0)
        goto fail;
    return module;
fail:
    Py_XDECREF (link);
    Py_XDECREF (function);
    Py_DECREF (module);
    return NULL;
}
