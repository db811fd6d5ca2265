"""How tasks are executed: a small interface, and the local pool of processes that keeps it.

A worker has one torch thread, however many workers there are: so sums are added up in one order, and results have the
same bits from one worker and from many. A worker that dies is replaced, and its task is tried once more, which goes on
where the run's checkpoint stands. Workers end when the process that started them does, however it ends.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing import connection
from typing import Any, Protocol

import torch

from calibrant.study.store import Record
from calibrant.study.work import Task, perform, sentence
from calibrant.train.reporting import Report

TRIES = 2
"""How often a task is begun if its worker dies: a machine may kill one for memory that others have taken."""
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


@dataclass(frozen=True)
class Event:
    """Something about a task: where its training stands, or at last its records, or the error that it ended with."""

    key: str
    report: Report | None = None
    records: Mapping[str, Record] | None = None
    error: str | None = None

    @property
    def last(self) -> bool:
        """Whether the task is over."""
        return self.report is None


class Executor(Protocol):
    """Tasks in, events out, in the order in which they happen."""

    def submit(self, key: str, task: Task) -> None:
        """Take a task, to be begun as soon as there is room."""

    def events(self) -> Iterator[Event]:
        """What happens, until every task is over."""

    def cancel(self) -> None:
        """End everything now; what is on the disk stays."""


@dataclass(eq=False)
class _Worker:
    process: Any
    pipe: connection.Connection
    key: str | None = None


@dataclass(eq=False)
class LocalPool:
    """Processes on this machine, each on the next of the devices; they are started when there is work for them."""

    workers: int
    devices: Sequence[str]
    waiting: deque[str] = field(default_factory=deque)
    tasks: dict[str, Task] = field(default_factory=dict)
    tries: dict[str, int] = field(default_factory=dict)
    live: list[_Worker] = field(default_factory=list)
    started: int = 0

    def submit(self, key: str, task: Task) -> None:
        self.tasks[key] = task
        self.waiting.append(key)

    def events(self) -> Iterator[Event]:
        try:
            while self.waiting or any(worker.key for worker in self.live):
                self._hand_out()
                busy = {worker.pipe: worker for worker in self.live if worker.key}
                for ready in connection.wait(list(busy)):
                    event = self._heard(busy[ready])  # type: ignore[index]
                    if event is not None:
                        yield event
        finally:
            self.cancel()

    def cancel(self) -> None:
        for worker in self.live:
            worker.process.terminate() if worker.key else _dismiss(worker)
        for worker in self.live:
            worker.process.join()
            worker.pipe.close()
        self.live.clear()
        self.waiting.clear()

    def _hand_out(self) -> None:
        """Give waiting tasks to idle workers, new ones while there is room."""
        while self.waiting:
            idle = next((worker for worker in self.live if worker.key is None), None)
            if idle is None:
                if len(self.live) >= self.workers:
                    return
                idle = self._start()
            key = self.waiting.popleft()
            self.tries[key] = self.tries.get(key, 0) + 1
            idle.key = key
            try:
                idle.pipe.send((key, self.tasks[key]))
            except OSError:  # it died while it was idle, which is no fault of this task
                self.tries[key] -= 1
                self._lose(idle)
                self.waiting.appendleft(key)

    def _start(self) -> _Worker:
        device = self.devices[self.started % len(self.devices)]
        self.started += 1
        context = multiprocessing.get_context("spawn")
        here, there = context.Pipe()
        process = context.Process(target=_serve, args=(there, device), daemon=True)
        with _one_thread():
            process.start()
        there.close()
        worker = _Worker(process, here)
        self.live.append(worker)
        return worker

    def _heard(self, worker: _Worker) -> Event | None:
        """The next word of a worker; None where a dead one's task is begun again."""
        key = worker.key
        assert key is not None
        try:
            kind, content = worker.pipe.recv()
        except (EOFError, OSError):
            code = self._lose(worker)
            if self.tries[key] < TRIES:
                self.waiting.appendleft(key)
                return None
            why = f"signal {-code}" if code is not None and code < 0 else f"exit {code}"
            return Event(key, error=f"its worker died {TRIES} times ({why}); was there enough memory?")
        if kind == "report":
            return Event(key, report=content)
        worker.key = None
        return Event(key, records=content) if kind == "done" else Event(key, error=content)

    def _lose(self, worker: _Worker) -> int | None:
        """Forget a dead worker; its exit code."""
        worker.process.join()
        worker.pipe.close()
        self.live.remove(worker)
        code: int | None = worker.process.exitcode
        return code


@contextmanager
def _one_thread() -> Iterator[None]:
    """Libraries read these when they are loaded, which in a new process is before its first line of ours."""
    before = {name: os.environ.get(name) for name in _THREADS}
    os.environ.update(dict.fromkeys(_THREADS, "1"))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _dismiss(worker: _Worker) -> None:
    try:
        worker.pipe.send(None)
    except OSError:
        worker.process.terminate()


def _serve(pipe: connection.Connection, device: str) -> None:
    """A worker: tasks from the pipe, one after another, until there are none."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches every process; the first one decides
    threading.Thread(target=_end_with_parent, daemon=True).start()
    torch.set_num_threads(1)
    while True:
        try:
            given = pipe.recv()
        except EOFError:
            return
        if given is None:
            return
        _, task = given
        try:
            records = perform(task, device, lambda report: pipe.send(("report", report)))
        except Exception as error:
            pipe.send(("failed", sentence(error)))
        else:
            pipe.send(("done", records))


def _end_with_parent() -> None:
    """A worker that outlived a killed study would hold the lock of its run when the study is run again."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    connection.wait([parent.sentinel])
    os._exit(1)
