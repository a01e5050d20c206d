# SPDX-License-Identifier: Apache-2.0
"""``--watch``: a view again and again, in one sandbox, until somebody ends it."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import select
import signal
import sys
import time
from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from types import FrameType
from typing import Any

import click

from nvsandbox.cli import failure, interrupts, jsontext, streams
from nvsandbox.cli.view import View

# What writing fails with where nobody reads any more, and how the command ends then: a pipe's other end, and a terminal
# that has gone, of which SIGHUP may come too late.
_GONE: dict[int | None, Callable[[], SystemExit]] = {
    errno.EPIPE: lambda: SystemExit(0),
    errno.EIO: lambda: interrupts.BySignal(signal.SIGHUP),
}
_LONGEST_WAIT = 3600.0  # seconds; it then goes on waiting
_ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class _Signals:
    """Raises BySignal on the signals that end a program, and notes a terminal's new size. In the main thread.

    A signal that comes just before a wait begins would not end it: Python runs handlers between its own instructions
    only. So each signal also writes to a pipe (signal.set_wakeup_fd), and waiting is for that.
    """

    def __init__(self) -> None:
        self._before: dict[int, Any] = {}
        self._resized = False

    def __enter__(self) -> _Signals:
        self._pipe = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._wakeup = signal.set_wakeup_fd(self._pipe[1], warn_on_full_buffer=False)
        for number in _ENDS:
            if signal.getsignal(number) is not signal.SIG_IGN:  # as by nohup
                self._before[number] = signal.signal(number, self._end)
        self._before[signal.SIGWINCH] = signal.signal(signal.SIGWINCH, self._resize)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._wakeup)
        for end in self._pipe:
            os.close(end)

    def _end(self, number: int, frame: FrameType | None) -> None:
        for each in _ENDS:
            signal.signal(each, signal.SIG_IGN)  # what is left to do is short and has to be done
        raise interrupts.BySignal(number)

    def _resize(self, number: int, frame: FrameType | None) -> None:
        self._resized = True

    def resized_within(self, seconds: float) -> bool:
        """Waits so long, or until the terminal has another size."""
        ready, _, _ = select.select([self._pipe[0]], [], [], seconds)
        if ready:
            os.read(self._pipe[0], 4096)
        resized, self._resized = self._resized, False
        return resized


def watch(view: View, nvml: Any, seconds: float, count: int | None, as_json: bool) -> None:
    """Shows `view` every `seconds` seconds, `count` times or until Ctrl-C, SIGTERM or SIGHUP, or until nobody reads
    any more.

    What fails is shown and does not end it, nor does the death of the worker: the session starts another one.
    """
    in_place = not (as_json or view.appends) and sys.stdout.isatty()
    screen: contextlib.AbstractContextManager[Any] = _Screen() if in_place else contextlib.nullcontext(_Paper(as_json))
    try:
        with _Signals() as signals, screen as output:
            for _ in _times(seconds, count, signals, output.redraw):
                output.show(view, *_read(view, nvml))
    except streams.Unwritable as error:
        if error.errno not in _GONE:
            raise
        raise _GONE[error.errno]() from None


def _read(view: View, nvml: Any) -> tuple[Any, BaseException | None]:
    try:
        return view.read(nvml), None
    except failure.EXPECTED as error:
        return None, error


def _times(seconds: float, count: int | None, signals: _Signals, redraw: Any) -> Iterator[int]:
    """Ends each wait at a multiple of the interval after the start, however long what happens in between takes; those
    that passed meanwhile are left out."""
    start = time.monotonic()
    number = tick = 0
    while True:
        yield number
        number += 1
        if number == count:
            return
        tick = max(tick + 1, int((time.monotonic() - start) // seconds) + 1)
        while (left := start + tick * seconds - time.monotonic()) > 0:
            if signals.resized_within(min(left, _LONGEST_WAIT)):
                redraw()


def _words(error: BaseException) -> str:
    return f"nvsandbox: {failure.message(error)}"


class _Paper:
    """One state after the other, each with the time, or as a line of JSON."""

    def __init__(self, as_json: bool) -> None:
        self._as_json = as_json
        self._told: list[str] = []

    def redraw(self) -> None:
        """Nothing to do: what is written stays."""

    def show(self, view: View, data: Any, error: BaseException | None) -> None:
        """Writes a state down. Problems are said once for as long as they stay the same."""
        now = datetime.now(timezone.utc)
        if self._as_json:
            state = failure.as_json(error) if error is not None else view.as_json(data)
            click.echo(jsontext.dumps({"timestamp": now.isoformat(timespec="milliseconds"), **state}, allow_nan=False))
        elif error is None:
            if not view.appends:
                click.echo(f"{now.astimezone():%Y-%m-%d %H:%M:%S%z}")
            for line in view.lines(data):
                click.echo(line)
            if not view.appends:
                click.echo()
        problems = [_words(error)] if error is not None else [f"nvsandbox: {p}" for p in view.problems(data)]
        # That the next restart is possible in 58.93 s instead of 59.01 s is no news.
        news = [re.sub(r"\bin \d+(\.\d+)? s\b", "soon", problem) for problem in problems]
        if news != self._told and not (self._as_json and error is None):
            for problem in problems:
                click.echo(problem, err=True)
            self._told = news
        sys.stdout.flush()


class _Screen:
    """The terminal's other screen, with each state in the place of the one before; at the end the last one stays on the
    first screen."""

    def __enter__(self) -> _Screen:
        self._last: tuple[View, Any, BaseException | None, datetime] | None = None
        # Another screen, no cursor, and lines that are too long are cut: they would move all below.
        self._write("\x1b[?1049h\x1b[?25l\x1b[?7l")
        return self

    def __exit__(self, *_: object) -> None:
        self._write("\x1b[?7h\x1b[?25h\x1b[?1049l")
        if self._last is not None:
            self._write("\n".join(self._lines()) + "\n")

    def show(self, view: View, data: Any, error: BaseException | None) -> None:
        """Draws a state."""
        self._last = (view, data, error, datetime.now().astimezone())
        self.redraw()

    def redraw(self) -> None:
        """Draws the last state anew, for the terminal may have another size now."""
        height = _console().height
        lines = self._lines()
        if len(lines) > height:
            lines = [*lines[: height - 1], f"… {len(lines) - height + 1} more lines"]
        self._write("\x1b[H" + "\r\n".join(f"{line}\x1b[K" for line in lines) + "\x1b[J")

    def _lines(self) -> list[str]:
        if self._last is None:
            return []
        view, data, error, when = self._last
        console = _console()
        with console.capture() as capture:
            if error is None:
                view.styled(data, console)
        problems = [_words(error)] if error is not None else [f"nvsandbox: {p}" for p in view.problems(data)]
        return [f"{when:%Y-%m-%d %H:%M:%S}", "", *capture.get().splitlines(), *problems]

    @staticmethod
    def _write(text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()


def _console() -> Any:
    from rich.console import Console  # here, for it takes a while to import

    return Console(highlight=False)
