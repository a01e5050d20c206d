/* SPDX-License-Identifier: Apache-2.0 */
#ifndef NVSANDBOX_BLOCK_H
#define NVSANDBOX_BLOCK_H

#include <Python.h>

/* Adds the type Block to a module. 0, or -1 with an exception. */
int nvs_block_add (PyObject *module);

#endif
