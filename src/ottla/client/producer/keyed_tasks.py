"""Background tasks, at most one for each key."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine


class KeyedTasks:
    """Runs tasks in the background. `on_done` is called when one has ended."""

    __slots__ = ("_on_done", "_tasks")

    def __init__(self, on_done: Callable[[], None]) -> None:
        self._on_done = on_done
        self._tasks: dict[object, asyncio.Task[None]] = {}

    def start(self, key: object, work: Coroutine[object, None, None]) -> None:
        """Starts a task, unless one with this key is running."""
        if key in self._tasks:
            work.close()
            return
        task = self._tasks[key] = asyncio.create_task(work)
        task.add_done_callback(lambda _: self._ended(key))

    def cancel(self) -> None:
        """Cancels all tasks."""
        for task in self._tasks.values():
            task.cancel()

    def _ended(self, key: object) -> None:
        self._tasks.pop(key, None)
        self._on_done()
