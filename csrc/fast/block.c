/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The base of nvml_isolated, for its __exit__. A signal handler of the caller's may run, and raise KeyboardInterrupt,
 * as the first thing in any Python function: written in Python, the end of a block could end before it has begun, and
 * nobody comes back to it. In C nothing runs in between until the thread that does the work is there;
 * nvsandbox/aside.py has the rest.
 */
#define Py_LIMITED_API 0x030a0000
#include <Python.h>

#include <stdbool.h>

#include "block.h"

static PyObject *start_new_thread;
static PyObject *is_finalizing;
static PyObject *allocate_lock;
static PyObject *copy_context;
static PyObject *name_acquire;
static PyObject *name_leave;
static PyObject *name_left;
static PyObject *name_run;

static bool
finalizes (void)
{
    PyObject *answer = PyObject_CallNoArgs (is_finalizing);
    bool yes = answer == Py_True;

    if (answer == NULL)
        PyErr_Clear ();
    Py_XDECREF (answer);
    return yes;
}

static PyObject *
block_exit (PyObject *self, PyObject *exc)
{
    PyObject *outcome = PyList_New (0);
    PyObject *done = PyObject_CallNoArgs (allocate_lock);
    PyObject *locked = done != NULL ? PyObject_CallMethodObjArgs (done, name_acquire, NULL) : NULL;
    PyObject *leave = PyObject_GetAttr (self, name_leave);
    PyObject *context = PyObject_CallNoArgs (copy_context);
    PyObject *run = context != NULL ? PyObject_GetAttr (context, name_run) : NULL;
    PyObject *thread = context != NULL ? PyWeakref_NewRef (context, NULL) : NULL;
    PyObject *started = NULL;
    PyObject *result = NULL;

    (void)exc;
    if (outcome == NULL || locked == NULL || leave == NULL || run == NULL || thread == NULL)
        goto out;
    /* Before Python 3.12 a thread can be started when the interpreter finalizes, and takes no step. */
    if (!finalizes ())
        started = PyObject_CallFunction (start_new_thread, "O(OOO)", run, leave, outcome, done);
    if (started == NULL
        && (PyErr_Occurred () == NULL || PyErr_ExceptionMatches (PyExc_RuntimeError)
            || PyErr_ExceptionMatches (PyExc_MemoryError))) {
        /* No more threads, or the interpreter's exit; no memory for one. */
        PyErr_Clear ();
        started = PyObject_CallFunctionObjArgs (leave, outcome, done, NULL);
    }
    /* From here on the context lives as long as the thread, which may end before its first step. */
    Py_CLEAR (run);
    Py_CLEAR (context);
    if (started != NULL)
        result = PyObject_CallMethodObjArgs (self, name_left, outcome, done, thread, NULL);
out:
    Py_XDECREF (thread);
    Py_XDECREF (started);
    Py_XDECREF (run);
    Py_XDECREF (context);
    Py_XDECREF (leave);
    Py_XDECREF (locked);
    Py_XDECREF (done);
    Py_XDECREF (outcome);
    return result;
}

static PyMethodDef block_methods[] = {
    { "__exit__", block_exit, METH_VARARGS,
      "Does _leave (outcome, done) in a thread, and then _left (outcome, done, thread)." },
    { NULL, NULL, 0, NULL },
};

static PyType_Slot block_slots[] = {
    { Py_tp_doc, "A block whose end no signal handler prevents." },
    { Py_tp_methods, block_methods },
    { 0, NULL },
};

static PyType_Spec block_spec = {
    .name = "nvsandbox._fast.Block",
    .basicsize = sizeof (PyObject),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE,
    .slots = block_slots,
};

static PyObject *
from_module (const char *module, const char *name)
{
    PyObject *found = PyImport_ImportModule (module);
    PyObject *object;

    if (found == NULL)
        return NULL;
    object = PyObject_GetAttrString (found, name);
    Py_DECREF (found);
    return object;
}

PyObject *
nvs_name (const char *text)
{
    return PyUnicode_InternFromString (text);
}

int
nvs_block_add (PyObject *module)
{
    PyObject *type;

    start_new_thread = from_module ("nvsandbox.threads", "start_new_thread");
    is_finalizing = from_module ("sys", "is_finalizing");
    allocate_lock = from_module ("nvsandbox.threads", "allocate_lock");
    copy_context = from_module ("contextvars", "copy_context");
    name_acquire = nvs_name ("acquire");
    name_leave = nvs_name ("_leave");
    name_left = nvs_name ("_left");
    name_run = nvs_name ("run");
    if (start_new_thread == NULL || is_finalizing == NULL || allocate_lock == NULL || copy_context == NULL
        || name_acquire == NULL || name_leave == NULL || name_left == NULL || name_run == NULL)
        return -1;
    type = PyType_FromSpec (&block_spec);
    if (type == NULL)
        return -1;
    if (PyModule_AddObject (module, "Block", type) < 0) {
        Py_DECREF (type);
        return -1;
    }
    return 0;
}
