# SPDX-License-Identifier: Apache-2.0
"""Who creates, changes and removes what in ``/dev``: behind ``nvsandbox audit``.

Two ways. :mod:`~nvsandbox.audit.supervise` runs a program in a throwaway copy of ``/dev`` and stops every process that
is about to change a name, for as long as it takes to write down who it is (seccomp's user notification): even a helper
that lives for a millisecond is named. :mod:`~nvsandbox.audit.watch` looks at the real ``/dev`` while others run
(fanotify), and reads who it was afterwards.

Roads not taken for the first: ptrace, which setuid programs lose their privileges under, and which debuggers need for
themselves; fanotify alone, whose events are read when the process may be gone.
"""
