"""Samples CPU time and resident memory of processes a few times a second."""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import NamedTuple, Self

from ottla.bench.processes import cpu_seconds_in_ticks, resident_bytes

INTERVAL_S = 0.1


class Sample(NamedTuple):
    """The CPU time and memory of a process at one moment of the monotonic clock."""

    at_ns: int
    cpu_s: float
    resident_bytes: int


class Sampler:
    """Samples from its own thread. Groups are kept apart: brokers, clients, brokers of other targets."""

    def __init__(self, groups: Mapping[str, Callable[[], Iterable[int]]]) -> None:
        self._groups = groups
        self._samples: dict[str, dict[int, list[Sample]]] = {name: defaultdict(list) for name in groups}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sampler", daemon=True)

    def _run(self) -> None:
        while not self._ended.wait(INTERVAL_S):
            self.look()

    def look(self) -> None:
        """Takes a sample of every process."""
        for name, pids in self._groups.items():
            for pid in pids():
                try:
                    sample = Sample(time.monotonic_ns(), cpu_seconds_in_ticks(pid), resident_bytes(pid))
                except (OSError, IndexError):
                    continue  # the process has ended
                self._samples[name][pid].append(sample)

    def cpu_s(self, group: str, begin_ns: int, end_ns: int) -> float:
        """Returns the CPU time of all processes of the group."""
        return sum(cpu_between(list(samples), begin_ns, end_ns) for samples in self._samples[group].values())

    def resident_bytes_max(self, group: str, begin_ns: int, end_ns: int) -> list[int]:
        """Returns the peak memory of each process of the group."""
        return [resident_max(list(samples), begin_ns, end_ns) for samples in self._samples[group].values()]

    def __enter__(self) -> Self:
        self.look()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()
        self.look()


def resident_max(samples: Sequence[Sample], begin_ns: int, end_ns: int) -> int:
    """Returns the peak memory, with one sample on each side: the interval may be shorter than the sampling interval."""
    first = max(bisect_left(samples, begin_ns, key=lambda sample: sample.at_ns) - 1, 0)
    end = bisect_left(samples, end_ns, key=lambda sample: sample.at_ns) + 1
    return max((sample.resident_bytes for sample in samples[first:end]), default=0)


def cpu_between(samples: Sequence[Sample], begin_ns: int, end_ns: int) -> float:
    """Returns the CPU time between two moments, interpolated between samples."""
    return _cpu_at(samples, end_ns) - _cpu_at(samples, begin_ns)


def _cpu_at(samples: Sequence[Sample], at_ns: int) -> float:
    """Interpolates linearly between two samples; before the first and after the last, the value is constant."""
    place = bisect_left(samples, at_ns, key=lambda sample: sample.at_ns)
    if not samples:
        return 0.0
    if place == 0:
        return samples[0].cpu_s
    if place == len(samples):
        return samples[-1].cpu_s
    before, after = samples[place - 1], samples[place]
    share = (at_ns - before.at_ns) / (after.at_ns - before.at_ns)
    return before.cpu_s + share * (after.cpu_s - before.cpu_s)
