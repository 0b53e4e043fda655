"""Exponential backoff. It only computes pauses: the caller sleeps, and the source of randomness is a parameter."""

from __future__ import annotations

import random
from collections.abc import Callable

NO_JITTER = (1.0, 1.0)


class Backoff:
    """Pauses that double up to a limit. Each is multiplied by a random factor between the two bounds of `jitter`."""

    def __init__(
        self,
        first_s: float,
        longest_s: float,
        *,
        jitter: tuple[float, float] = NO_JITTER,
        uniform: Callable[[float, float], float] = random.uniform,
    ) -> None:
        self._first_s = first_s
        self._longest_s = longest_s
        self._jitter = jitter
        self._uniform = uniform
        self._next_s = first_s

    def reset(self) -> None:
        """Starts again with the first pause."""
        self._next_s = self._first_s

    def next_s(self) -> float:
        """Returns the pause before the next attempt and doubles it for the one after."""
        pause_s = min(self._longest_s, self._next_s)
        self._next_s = pause_s * 2
        return pause_s * self._uniform(*self._jitter)
