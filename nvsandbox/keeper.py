# SPDX-License-Identifier: Apache-2.0
"""Which worker serves a session: the first one, the next one after a death or in place of one that has served its time,
and the end.

All of it happens aside (aside.py): no lock here is ever held by a thread in which code of the caller's may run, and a
caller waits for a worker no longer than it wants to.
"""

from __future__ import annotations

import errno
import logging
import time
from collections.abc import Callable, Iterable

import pynvml

from nvsandbox import _fast, aside, ending, launch
from nvsandbox.errors import SandboxClosed, SandboxError, SandboxStartError, WorkerDied
from nvsandbox.forks import this_process
from nvsandbox.options import Options
from nvsandbox.restarts import WINDOW as RESTART_WINDOW
from nvsandbox.restarts import Restarts
from nvsandbox.worker import Worker

_log = logging.getLogger("nvsandbox")

ABANDONED_MAX = 4
"""Workers in state D at which no more are started: each holds memory, and its GPU does not come back by asking
again."""


class Keeper:
    """Keeps a session's worker."""

    def __init__(self, options: Options, link: _fast.Link | None) -> None:
        self.options = options
        self.link = link
        self.closed = False
        self.meanwhile: Callable[[], None] | None = None
        """What is to be done, once, while a worker starts."""
        self.worker: Worker | None = None
        self.restarts = Restarts(int(options.restart))
        self.counts = {"restarts": 0, "recycles": 0}
        self.stateful: list[None] = []
        """One for each event set and GPM sample that there is, from before it is made: they would not survive a
        recycling."""
        self.untold: list[int] = []
        """Workers that have taken the place of one that died, and that nobody was told of yet."""
        self._lock = aside.Lock()  # held during a start
        self._ending: list[Worker] = []  # given up, and not known to have ended yet
        self._starting: aside.Task[Worker] | None = None
        self._recycling: aside.Task[None] | None = None

    # ---- for callers

    def current(self) -> Worker | None:
        """The worker, dead or alive; None where this process has none."""
        worker = self.worker
        return worker if worker is not None and worker.owner == this_process() else None

    def running(self, limit: float | None) -> Worker | None:
        """The worker, or a new one where it is gone; None if that takes longer than `limit` seconds, after which it
        goes on for whoever asks next.

        Raises WorkerDied where there may be no new one (yet), SandboxClosed, and what starting one raises.
        """
        worker = self.current()
        if worker is not None and worker.alive:
            return worker
        if self.closed or aside.finalizing():
            raise is_closed()
        if aside.here():
            return self._renew()
        # One start for all who wait for it. If two threads come here at once there are two, of which the second finds
        # the worker of the first.
        task = self._starting
        if task is None or task.done:
            task = aside.Task(self._renew)
            task.start()
            self._starting = task
        return task.result() if task.wait(limit) else None

    def recycle(self, worker: Worker) -> None:
        """Has a worker replaced that has served its time. Calls go on, in it and to it, until the next one is ready."""
        task = self._recycling
        if self.stateful or (task is not None and not task.done):
            return
        task = aside.Task(lambda: self._recycle(worker))
        task.start()
        self._recycling = task

    # ---- aside

    def _renew(self) -> Worker:
        with self._lock:
            if self.closed:
                raise is_closed()
            old = self.current()
            if old is not None:
                if old.alive:
                    return old
                self._allow_restart(old)
                self._retire(old)
                self.restarts.started()
                self.counts["restarts"] += 1
            elif too_many := self._too_many_given_up():
                raise SandboxStartError("start", errno.EBUSY, "", too_many)
            elif self.restarts.pause() > 0:  # in a forked child, whose first worker could not be started
                raise SandboxStartError("start", errno.EAGAIN, "", self._why_not_yet())
            try:
                fresh = self._start(old)
            except Exception as error:
                if not self.closed:
                    self.restarts.failed(error)
                raise
            self.restarts.failure = ""
            self._connect(fresh)
            self.stateful.clear()  # what there was of that went with the old one
            if old is not None:
                self.untold.append(fresh.pid)
            return fresh

    def _start(self, old: Worker | None) -> Worker:
        fresh = launch.start(self.options, self._go_on, self.link)
        if self.closed:
            fresh.process.closing = True
            fresh.stop()
            raise is_closed()
        between = self.current()
        if between is not None and between is not old:
            # A finalizer has called NVML in the middle of this start, in this thread.
            self._ending.append(between)
            between.finish()
        self.worker = fresh
        return fresh

    def _connect(self, worker: Worker) -> None:
        """From here on calls may go the short way to it."""
        if self.link is not None:
            self.link.connect(worker.serial, worker.tokens)

    def _go_on(self) -> None:
        """Ends a start that nobody waits for any more; and does what is to be done meanwhile."""
        if self.closed:
            raise is_closed()
        meanwhile, self.meanwhile = self.meanwhile, None
        if meanwhile is not None:
            meanwhile()

    def _allow_restart(self, worker: Worker) -> None:
        """Raises if there is to be no new worker after this one, or not yet."""
        if not self.options.restart:
            death = worker.death("")
            if isinstance(death, WorkerDied):
                death.sent = False
            raise death
        if self.restarts.wait() > 0:
            why = self._why_not_yet()
        elif too_many := self._too_many_given_up():
            why = too_many
        else:
            return
        death = worker.death("")
        if isinstance(death, WorkerDied):
            death = WorkerDied("", death.signal, death.status, f"{death.how}; {why}", False)
        raise death

    def _why_not_yet(self) -> str:
        """Why the next worker is not started now, and when it may be."""
        full, pause = self.restarts.full(), self.restarts.pause()
        if full > pause:
            why = (
                f"{self.restarts.recent} restarts within {RESTART_WINDOW:g} s did not help, and the next is possible "
                f"in {full:.2f} s (restart= sets how many are)"
            )
        else:
            why = f"new workers fail one after another, and the next is started in {pause:.2f} s at the earliest"
        failure = self.restarts.failure
        return f"{why}; the last start failed: {failure}" if failure else why

    def _too_many_given_up(self) -> str:
        """Why no more workers are started; "" where they are."""
        number = ending.given_up(self.options)
        if number < ABANDONED_MAX:
            return ""
        return (
            f"{number} earlier workers cannot be ended even by SIGKILL, for they do not return from the driver, so no "
            f"more are started; the GPU or its driver has to be reset"
        )

    def _retire(self, worker: Worker) -> None:
        """Takes leave of a worker that is gone, or that hangs: then its end goes on without us waiting for it."""
        self._ending = [gone for gone in self._ending if not gone.process.ended()]
        if worker.process.ended():
            worker.stop()
        else:
            self._ending.append(worker)

    def _recycle(self, worker: Worker) -> None:
        # Not while a start is under way: then that is the worker's end anyway.
        if not self._lock.acquire(timeout=0):
            return
        try:
            if self.closed or self.worker is not worker:
                return
            try:
                fresh = self._start(worker)
            except (SandboxError, pynvml.NVMLError) as error:
                if not self.closed:
                    _log.warning("the NVML worker %d is not recycled: no new one can be started: %s", worker.pid, error)
                worker.served_on()
                return
            # Whoever makes something that lasts says so first and then looks which worker serves; here it is the other
            # way round, so that one of the two sees the other.
            if self.stateful:
                self.worker = worker
                worker.served_on()
                fresh.finish()
                return
            self._connect(fresh)
            self.counts["recycles"] += 1
            self._ending = [gone for gone in self._ending if not gone.process.ended()]
            self._ending.append(worker)
        finally:
            self._lock.release()
        _log.info("the NVML worker %d takes the place of %d, which is recycled", fresh.pid, worker.pid)
        worker.finish()

    def workers(self) -> list[Worker]:
        """All that are this process's, also those that are being ended."""
        return [one for one in (*self._ending, self.current()) if one is not None and one.owner == this_process()]

    def after_fork_in_child(self) -> None:
        # The lock may be held by a thread that does not exist here.
        self._lock = aside.Lock()
        self._ending = []
        self._starting = self._recycling = None
        self.untold = []
        self.restarts = Restarts(self.restarts.limit)
        self.counts = dict.fromkeys(self.counts, 0)


def close(keepers: Iterable[Keeper]) -> None:
    """Ends the workers of all these, side by side, and their starts if any are under way: in the time that one
    takes."""
    keepers = list(keepers)
    latest = time.monotonic() + ending.limit()
    for keeper in keepers:
        keeper.closed = True  # a start that is under way ends then
    done = _end(keepers, set())
    for keeper in keepers:
        if keeper._lock.acquire(timeout=max(0.0, latest - time.monotonic())):
            keeper._lock.release()
    # Those that came up just before they could know.
    _end(keepers, done)
    for keeper in keepers:
        keeper.worker = None


def _end(keepers: list[Keeper], done: set[Worker]) -> set[Worker]:
    workers = {worker for keeper in keepers for worker in keeper.workers()} - done
    for worker in workers:
        if worker.alive:
            worker.process.closing = True
    ending.end(workers)
    return done | workers


def is_closed() -> SandboxClosed:
    return SandboxClosed("this sandbox is closed; open a new one with nvml_isolated()")
