/* SPDX-License-Identifier: Apache-2.0 */
/* What the generated _core.c starts with; cdef.h is the part of it that Python sees. */
#include "core.h"
#include "histogram.h"
#include <sys/socket.h>
