/* SPDX-License-Identifier: Apache-2.0 */
#ifndef NVSANDBOX_BLOCK_H
#define NVSANDBOX_BLOCK_H

#include <Python.h>

/*
 * A string that there is once, for PyObject_GetAttr() and its like. PyObject_GetAttrString() and PyObject_CallMethod()
 * make a new one each time, which stays: Python's cache of what attributes are (4096 entries, found by the name's
 * address) keeps it.
 */
PyObject *nvs_name (const char *text);

/* Adds the type Block to a module. 0, or -1 with an exception. */
int nvs_block_add (PyObject *module);

#endif
