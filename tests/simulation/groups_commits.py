"""A history of the offsets that the members of a group committed, in virtual time.

Commits of one partition may overlap, and one without a reply may take effect at any later time. A read may therefore
find one of several values, but never one that was settled before another commit began that was acknowledged before the
read.

    commits         no acknowledged commit is lost, and no rejected one takes effect
    fencing         no commit of a generation succeeds after one of a later generation was acknowledged
"""

from __future__ import annotations

from dataclasses import dataclass

from tests.simulation.violations import Violation


@dataclass(slots=True)
class Commit:
    number: int
    generation: int
    sent_s: float
    outcome: str = "unknown"
    settled_s: float = float("inf")

    def __str__(self) -> str:
        ended = f"{self.outcome} at {self.settled_s:.6f} s" if self.outcome != "unknown" else "no answer"
        return f"{self.number} of generation {self.generation}, sent at {self.sent_s:.6f} s, {ended}"


class Commits:
    """The commits for one partition of one group."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._commits: dict[int, Commit] = {}
        self.acknowledged = 0

    def sent(self, number: int, generation: int, now_s: float) -> Commit:
        commit = self._commits[number] = Commit(number, generation, now_s)
        return commit

    def taken(self, commit: Commit, now_s: float) -> None:
        commit.outcome, commit.settled_s = "acknowledged", now_s
        self.acknowledged += 1
        for other in self._commits.values():
            is_before = other.outcome == "acknowledged" and other.settled_s < commit.sent_s
            if is_before and other.generation > commit.generation >= 0:
                raise Violation("fencing", f"{self._name}: {commit}, and before it {other}")

    def refused(self, commit: Commit, now_s: float) -> None:
        commit.outcome, commit.settled_s = "refused", now_s

    def read(self, number: int | None, sent_s: float) -> None:
        """Checks the result of a read that was sent at this time."""
        found = self._commits.get(number) if number is not None else None
        if number is not None and (found is None or found.outcome == "refused"):
            raise Violation("commits", f"{self._name}: {found or number} was read at {sent_s:.6f} s")
        for other in self._commits.values():
            if other.outcome != "acknowledged" or other.settled_s > sent_s:
                continue
            if found is None or (found.outcome == "acknowledged" and found.settled_s < other.sent_s):
                text = f"{self._name}: a read at {sent_s:.6f} s found {found or 'nothing'}, not {other}"
                raise Violation("commits", text)
