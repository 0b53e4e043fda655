"""Replaces what code takes from its process without a port: the time, random numbers, ids and listening sockets.

Inside a simulated world all of these come from virtual time and the seed, so that neither a library nor code that
bypasses a port can make two runs of one seed differ. Outside, everything is unchanged.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from random import Random
from typing import Any

import ottla.broker.server.listener
from ottla.sim.loop import bind

Now = Callable[[], float]
"""A clock; returns seconds."""


@contextmanager
def ambient(rng: Random, wall_s: Now, monotonic_s: Now) -> Iterator[None]:
    """Patches the process for the duration of the context. `wall_s` and `monotonic_s` are called on every access,
    because they may differ between hosts."""

    class SeededRandom(Random):
        """Draws its seed from the world. Python's own class would take it from the operating system."""

        def __init__(self, seed: Any = None) -> None:
            super().__init__(rng.getrandbits(64) if seed is None else seed)

    with ExitStack() as stack:
        state = random.getstate()
        stack.callback(random.setstate, state)
        random.seed(rng.getrandbits(64))
        for owner, name, value in (
            (time, "time", wall_s),
            (time, "time_ns", lambda: int(wall_s() * 1e9)),
            (time, "monotonic", monotonic_s),
            (time, "monotonic_ns", lambda: int(monotonic_s() * 1e9)),
            (time, "perf_counter", monotonic_s),
            (time, "perf_counter_ns", lambda: int(monotonic_s() * 1e9)),
            (random, "Random", SeededRandom),
            (os, "urandom", rng.randbytes),
            (ottla.broker.server.listener, "bind", bind),
        ):
            stack.callback(setattr, owner, name, getattr(owner, name))
            setattr(owner, name, value)
        yield
