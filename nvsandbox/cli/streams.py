# SPDX-License-Identifier: Apache-2.0
"""Standard streams that are closed, full, or that nobody reads."""

from __future__ import annotations

import codecs
import contextlib
import errno
import io
import os
import signal
import sys
from collections.abc import Iterator
from typing import IO, Any, cast

import click

from nvsandbox.cli.wording import printable


class Unwritable(click.ClickException):
    """A report could not be written. No OSError: commands that expect those of what they look at would take it for one.

    A reader who has gone wants to be told nothing, so that ends the command as SIGPIPE would.
    """

    exit_code = 3

    def __init__(self, name: str, error: OSError) -> None:
        super().__init__(f"{name} cannot be written: {error.strerror}")
        self.errno = error.errno
        if self.reader_gone:
            self.exit_code = 128 + signal.SIGPIPE  # type: ignore[misc]

    @property
    def reader_gone(self) -> bool:
        """Whether it is a pipe that nobody reads any more."""
        return self.errno == errno.EPIPE

    def show(self, file: IO[Any] | None = None) -> None:
        if not self.reader_gone:
            click.echo(f"nvsandbox: {printable(self.message)}", file=file, err=True)


# What follows catches at the level of text. A write() of Python's below the buffer would be a place where a signal's
# exception can fall between what the kernel took and what the buffer knows of it, and the same would be written twice.


class _Report(io.TextIOWrapper):
    """Raises Unwritable once. From then on there is nothing to be written: what is left in buffers would be complained
    about when Python ends."""

    def __init__(self, fd: int, called: str, encoding: str, errors: str, *, closefd: bool = False) -> None:
        self._fd = fd
        self._called = called
        self._broken = False
        raw = io.FileIO(fd, "w", closefd=closefd)
        super().__init__(io.BufferedWriter(raw), encoding, errors, line_buffering=raw.isatty())

    def _failed(self, error: OSError) -> Unwritable:
        self._broken = True
        null = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
        os.dup2(null, self._fd, inheritable=False)
        os.close(null)
        return Unwritable(self._called, error)

    def write(self, text: str) -> int:
        if self._broken:
            return len(text)
        try:
            return super().write(text)
        except OSError as error:
            raise self._failed(error) from None

    def flush(self) -> None:
        try:
            super().flush()
        except OSError as error:
            if not self._broken:
                raise self._failed(error) from None


class _Told(io.TextIOWrapper):
    """Where errors are told. That this fails can be told nowhere, and changes no exit status."""

    def __init__(self, fd: int, encoding: str, errors: str) -> None:
        raw = io.FileIO(fd, "w", closefd=False)
        # No buffer between: nothing is left in it that would be tried again.
        super().__init__(cast("Any", raw), encoding, errors, write_through=True)

    def write(self, text: str) -> int:
        with contextlib.suppress(OSError):
            return super().write(text)
        return len(text)


def report_file(path: str) -> IO[str]:
    """A file for a report, to which writing raises Unwritable. Raises OSError if it cannot be opened."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
    return _Report(fd, path, "utf-8", "replace", closefd=True)


def _hold() -> None:
    """Fills those that are closed, so that nothing of ours comes to lie there and is written to. Programs that are
    started have them closed again."""
    for fd in range(3):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)  # the lowest number that is free


@contextlib.contextmanager
def guarded() -> Iterator[None]:
    """While it is open writing to standard output raises Unwritable, standard error takes everything, and none of the
    three is closed. Streams that somebody has put in their places, such as tests, are left as they are."""
    _hold()
    before = sys.stdout, sys.stderr
    try:
        if sys.stdout is sys.__stdout__:
            sys.stdout = _Report(_waiting(1), "standard output", *_encoding(before[0]))
        if sys.stderr is sys.__stderr__:
            sys.stderr = _Told(_waiting(2), *_encoding(before[1]))
        yield
    finally:
        sys.stdout, sys.stderr = before


def _encoding(stream: Any) -> tuple[str, str]:
    # Where it was closed when Python started, there is none. ASCII click would take for a mistake, and go around us.
    if stream is None or codecs.lookup(stream.encoding).name == "ascii":
        return "utf-8", "replace"
    return stream.encoding, stream.errors


def _waiting(fd: int) -> int:
    """`fd`, or where somebody, such as a program before us at the same terminal, has made it not wait (O_NONBLOCK), one
    of our own that does. To set it back would change theirs."""
    if not os.get_blocking(fd):
        with contextlib.suppress(OSError):  # a socket cannot be opened so
            return os.open(f"/proc/self/fd/{fd}", os.O_WRONLY | os.O_NOCTTY | os.O_CLOEXEC)
    return fd
