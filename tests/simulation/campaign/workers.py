"""Worker processes that run one seed after another. If one hangs or dies, only its seed is lost, not the campaign."""

from __future__ import annotations

import faulthandler
import gc
import logging
import multiprocessing
import signal
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from time import monotonic

from tests.simulation.campaign.outcomes import DIED, HUNG, Failed, Job, Outcome, run_seed

SEEDS_A_PROCESS = 100
"""A process is replaced after this many seeds, so that nothing left behind by seeds can accumulate."""
GRACE_S = 60.0
"""Time for a process to start, and for a hung one to print its stack and exit before it is killed."""
EXIT_HUNG = 1
"""Exit status of a process that `faulthandler` ended."""

RunSeed = Callable[[Job], Outcome]


class Worker:
    def __init__(self, run: RunSeed, hung_after_s: float) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([run_seed.__module__])  # the modules are imported once for all workers
        self.pipe, theirs = context.Pipe()
        self.process: BaseProcess = context.Process(target=work, args=(theirs, run, hung_after_s), daemon=True)
        self.process.start()
        theirs.close()
        self.job: Job | None = None
        self.given = 0
        self._run = run
        self._hung_after_s = hung_after_s
        self._begun_s = 0.0

    def give(self, job: Job) -> None:
        self.job = job
        self.given += 1
        self._begun_s = monotonic()
        self.pipe.send(job)

    @property
    def is_hung(self) -> bool:
        return self.job is not None and monotonic() - self._begun_s > self._hung_after_s + GRACE_S

    @property
    def is_spent(self) -> bool:
        return self.given >= SEEDS_A_PROCESS or not self.process.is_alive()

    def successor(self) -> Worker:
        return Worker(self._run, self._hung_after_s)

    def take(self) -> Outcome | None:
        """Returns the outcome of its seed if there is one."""
        job = self.job
        assert job is not None
        try:
            if self.pipe.poll():
                outcome = self.pipe.recv()
                assert isinstance(outcome, Outcome)
                self.job = None
                return outcome
        except EOFError:
            return self._lost(job)
        if self.is_hung or not self.process.is_alive():
            return self._lost(job)
        return None

    def _lost(self, job: Job) -> Outcome:
        after_s = monotonic() - self._begun_s
        is_hung = self.is_hung
        self.process.join(timeout=0 if is_hung else GRACE_S)
        self.end()
        if is_hung or (self.process.exitcode == EXIT_HUNG and after_s >= self._hung_after_s):
            failed = Failed(HUNG, f"not over after {after_s:.0f} s; where it hung is printed above")
        else:
            failed = Failed(DIED, f"its process ended with {self.process.exitcode}")
        return Outcome(job.seed, failed, job.kind, real_s=after_s)

    def end(self) -> None:
        self.job = None
        self.process.kill()
        self.process.join()
        self.pipe.close()


def run_all(
    jobs: Iterable[Job], worker_count: int, *, hung_after_s: float, beat_s: float, run: RunSeed = run_seed
) -> Iterator[Outcome | None]:
    """Yields outcomes as they arrive, and None at least every `beat_s` seconds so that the caller can show progress."""
    left = iter(jobs)
    workers: list[Worker] = []
    try:
        for job in islice(left, worker_count):
            workers.append(Worker(run, hung_after_s))
            workers[-1].give(job)
        while workers:
            wait([worker.pipe for worker in workers], timeout=beat_s)
            for worker in list(workers):
                outcome = worker.take()
                if outcome is not None:
                    workers.remove(worker)
                    workers += _next_for(worker, left)
                    yield outcome
            yield None
    finally:
        for worker in workers:
            worker.end()


def _next_for(worker: Worker, left: Iterator[Job]) -> list[Worker]:
    """Gives the next seed to the worker, or to a new one in its place. Returns an empty list if no seed is left."""
    job = next(left, None)
    if job is not None and not worker.is_spent:
        worker.give(job)
        return [worker]
    worker.end()
    if job is None:
        return []
    fresh = worker.successor()
    fresh.give(job)
    return [fresh]


def work(pipe: Connection[Outcome, Job], run: RunSeed, hung_after_s: float) -> None:
    """Runs in the worker process. Ctrl-C is handled by its parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    logging.disable()  # brokers under faults log a lot
    gc.collect()
    gc.freeze()  # the modules: no collection of a seed looks at them again
    while True:
        try:
            job = pipe.recv()
        except EOFError:
            return
        faulthandler.dump_traceback_later(hung_after_s, exit=True)
        outcome = run(job)
        faulthandler.cancel_dump_traceback_later()
        pipe.send(outcome)
        gc.collect()  # a world is full of cycles
