"""Reports the progress of a recovery to a callback or as a progress bar in the terminal."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of a replay at one moment."""

    begin_offset: int
    offset: int
    """The next offset to be read."""
    end_offset: int
    """The expected end: the recovery point, or the end of the log when the replay began."""
    entry_count: int
    elapsed_s: float

    @property
    def fraction(self) -> float:
        """The part of the log that is done, from 0 to 1."""
        length = self.end_offset - self.begin_offset
        return min(1.0, (self.offset - self.begin_offset) / length) if length > 0 else 1.0

    @property
    def entries_per_s(self) -> float:
        """The average rate since the replay began."""
        return self.entry_count / self.elapsed_s if self.elapsed_s > 0 else 0.0

    @property
    def left_s(self) -> float:
        """The estimated remaining time at the average rate so far."""
        return (1 - self.fraction) * self.elapsed_s / self.fraction if self.fraction > 0 else float("inf")


OnProgress: TypeAlias = Callable[[Progress], None]


class Meter:
    """Calls `on_progress` at most once every `interval_s`, and at the end."""

    def __init__(self, begin_offset: int, end_offset: int, on_progress: OnProgress | None, interval_s: float = 0.2):
        self._begin_offset = begin_offset
        self._end_offset = end_offset
        self._on_progress = on_progress
        self._interval_s = interval_s
        self._began_s = self._reported_s = time.monotonic()

    @property
    def elapsed_s(self) -> float:
        """The time since the meter was created."""
        return time.monotonic() - self._began_s

    def note(self, offset: int, entry_count: int, *, is_last: bool = False) -> None:
        """Reports this offset if a report is due or if it is the last one."""
        now_s = time.monotonic()
        if self._on_progress is None or (now_s - self._reported_s < self._interval_s and not is_last):
            return
        self._reported_s = now_s
        moment = Progress(self._begin_offset, offset, self._end_offset, entry_count, now_s - self._began_s)
        self._on_progress(moment)


@contextmanager
def progress_bar(title: str = "replay", *, quiet: bool = False) -> Iterator[OnProgress]:
    """A progress bar with count, rate and remaining time. `quiet` hides it; a file gets only the final state.

    Example:

        with progress_bar("orders") as bar:
            await recover(log, applier, on_progress=bar)
    """
    from rich import progress as rich_progress

    columns = (
        rich_progress.TextColumn("{task.description}"),
        rich_progress.BarColumn(),
        rich_progress.MofNCompleteColumn(),
        rich_progress.TextColumn("{task.fields[rate]}"),
        rich_progress.TimeRemainingColumn(),
    )
    with rich_progress.Progress(*columns, disable=quiet) as shown:
        task = shown.add_task(title, total=None, rate="")

        def on_progress(moment: Progress) -> None:
            shown.update(
                task,
                completed=moment.offset - moment.begin_offset,
                total=moment.end_offset - moment.begin_offset,
                rate=f"{moment.entries_per_s:,.0f} entries/s",
            )

        yield on_progress
