"""What code takes from its process without asking a port: the time, random numbers, ids, listening sockets.

Inside a simulated world all of it comes from virtual time and from the seed, so that a library, or a place where
somebody forgot the port, cannot make two runs of one seed differ. Outside, everything is as it was.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from random import Random
from typing import Any

import ottla.server.listener
from ottla.sim.sockets import bind

Now = Callable[[], float]
"""In seconds."""


@contextmanager
def ambient(rng: Random, wall_s: Now, monotonic_s: Now) -> Iterator[None]:
    """`wall_s` and `monotonic_s` are asked whenever the code asks: they may differ from host to host."""

    class SeededRandom(Random):
        """Without a seed, Python's takes one from the operating system."""

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
            (ottla.server.listener, "bind", bind),
        ):
            stack.callback(setattr, owner, name, getattr(owner, name))
            setattr(owner, name, value)
        yield
