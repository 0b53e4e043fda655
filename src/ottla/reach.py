"""Counts how often rare branches are reached, so that a test campaign can tell which of them it has tested.

    _ROLLED = branch("a segment is rolled", __name__)      # declared at the top of the module that counts it

    def roll(self) -> None:
        _ROLLED()

A call is one addition. It belongs on branches that a broker takes rarely, never on the path of every record. Nothing in
a broker reads the counts. A simulation can `observe` them, to inject a fault exactly where a branch is taken.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

BRANCHES: Final[dict[str, Branch]] = {}
"""All branches that are declared in the modules imported so far, by name."""
Observer = Callable[["Branch"], None]
_observer: Observer | None = None


class Branch:
    """A branch of the code. A call counts that it was taken."""

    __slots__ = ("count", "module", "name")

    def __init__(self, name: str, module: str) -> None:
        self.name = name
        self.module = module
        self.count = 0

    def __call__(self) -> None:
        self.count += 1
        if _observer is not None:
            _observer(self)

    def __repr__(self) -> str:
        return f"<branch {self.name!r}: {self.count}>"


def branch(name: str, module: str) -> Branch:
    """Declares a branch. Each name is declared once."""
    if name in BRANCHES:
        raise ValueError(f"the branch {name!r} is declared in {BRANCHES[name].module} already")
    BRANCHES[name] = Branch(name, module)
    return BRANCHES[name]


def observe(observer: Observer | None) -> None:
    """Calls `observer` whenever a branch is taken, on the thread that takes it. None ends that."""
    global _observer  # one process has one observer: a simulated world
    _observer = observer


def counts() -> dict[str, int]:
    """Returns how often each branch was taken, by name."""
    return {each.name: each.count for each in BRANCHES.values()}


def reset() -> None:
    """Sets all counts to zero."""
    for each in BRANCHES.values():
        each.count = 0
