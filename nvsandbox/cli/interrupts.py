# SPDX-License-Identifier: Apache-2.0
"""Signals that end a command: it tidies up, and then ends by the signal, as programs do that do not catch it."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any


class BySignal(SystemExit):
    """Ends the command. Its status is what a shell shows of a program that the signal has ended."""

    def __init__(self, number: int) -> None:
        super().__init__(128 + number)
        self.number = number

    def die(self) -> None:
        """Ends this process by the signal: whoever started it, such as a shell with a loop, knows by that what it was.

        Returns where that is not possible: the first process of a pid namespace gets no signal that it does not catch.
        """
        signal.signal(self.number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [self.number])
        os.kill(os.getpid(), self.number)


class Interrupts:
    """What became of Ctrl-C while a command ran."""

    def __init__(self) -> None:
        self._came = False
        self._before: Any = None

    def catch(self) -> None:
        """From here on Ctrl-C raises KeyboardInterrupt. Not while the command is still being imported."""
        if threading.current_thread() is not threading.main_thread():
            return
        before = signal.getsignal(signal.SIGINT)
        if before in (signal.SIG_DFL, signal.default_int_handler):  # not where it is ignored
            self._before = before
            signal.signal(signal.SIGINT, self._interrupt)

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        self._came = True
        raise KeyboardInterrupt

    def _release(self) -> None:
        if self._before is not None and signal.getsignal(signal.SIGINT) == self._interrupt:
            signal.signal(signal.SIGINT, self._before)

    @contextlib.contextmanager
    def silent(self) -> Iterator[None]:
        """Raises BySignal for an interrupt, whatever it has become on its way: an import that it falls into may make
        another error of it, and where Python cannot let an error go on (in a callback of the garbage collector, say) it
        is printed and forgotten."""
        self._hook = sys.unraisablehook
        sys.unraisablehook = self._lost
        try:
            yield
        except BySignal:
            raise
        except BaseException as error:
            if self._came or isinstance(error, KeyboardInterrupt):
                raise BySignal(signal.SIGINT) from None
            raise
        finally:
            self._release()
            sys.unraisablehook = self._hook
        if self._came:
            raise BySignal(signal.SIGINT)

    def _lost(self, unraisable: Any) -> None:
        if isinstance(unraisable.exc_value, KeyboardInterrupt):
            BySignal(signal.SIGINT).die()  # Python has forgotten it, and it cannot be raised here
        else:
            self._hook(unraisable)
