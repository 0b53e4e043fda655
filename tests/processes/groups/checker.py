"""Finds the anomalies of a group's history. Pure: a history in, findings out.

Kafka guarantees that each record is processed at least once and by one owner per generation, and that the next owner
starts at the last acknowledged commit. A member that lost its session does not know it at once: it may continue to
process, but it cannot commit.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import pairwise

from tests.processes.groups.history import NOT_KNOWN, Commit, End, GroupHistory, Outcome, Ownership, Span

SHOWN_MAX = 10


class Anomaly(StrEnum):
    UNPROCESSED = "unprocessed"
    """A record that no member processed."""
    TWO_OWNERS = "two owners in a generation"
    OVERLAP = "two owners at a time"
    """Two owners without a pause, and without the first having been notified of its loss."""
    ZOMBIE_COMMIT = "a commit of a former owner"
    """An acknowledged commit that was sent when another member owned the partition."""
    COMMIT_LOST = "lost commit"
    WENT_BACK = "went back"
    """An owner started below an acknowledged commit, or read a record again."""
    SKIPPED = "skipped"
    """An owner left out records, or started above everything that could have been committed."""
    TOO_FAR = "committed too far"
    """A commit of records that no member had processed yet."""
    GENERATION_BACK = "generation went back"
    UNFINISHED = "unfinished"
    """At the end, the partitions were not evenly owned by live members with everything committed."""
    BROKEN = "broken"


@dataclass(slots=True)
class Findings:
    sentences: defaultdict[Anomaly, list[str]] = field(default_factory=lambda: defaultdict(list))

    def add(self, anomaly: Anomaly, sentence: str) -> None:
        self.sentences[anomaly].append(sentence)

    @property
    def ok(self) -> bool:
        return not self.sentences

    def __str__(self) -> str:
        lines = []
        for anomaly, sentences in self.sentences.items():
            lines.append(f"{anomaly}: {len(sentences)}")
            lines += [f"  {sentence}" for sentence in sentences[:SHOWN_MAX]]
        return "\n".join(lines) or "no anomaly"


def check(history: GroupHistory, session_us: int, unconfirmed_us: int = 0) -> Findings:
    """Returns the anomalies of a history.

    `unconfirmed_us`: in the consumer protocol, a member that reports what it owns confirms that it does not have
    partitions that it is about to take (ADR 10, a known limit, as in Kafka). If such a partition is given to another
    member, it has two owners until the first is notified. An ownership younger than this may be such a case.
    """
    findings = Findings()
    for sentence in history.broken:
        findings.add(Anomaly.BROKEN, sentence)
    for sentence in history.strays:
        findings.add(Anomaly.BROKEN, sentence)
    by_partition: defaultdict[int, list[Ownership]] = defaultdict(list)
    for one in sorted(history.ownerships, key=lambda one: one.began_us):
        by_partition[one.partition].append(one)
    for partition in sorted({*by_partition, *history.log_ends}):
        _PartitionCheck(history, findings, partition, by_partition[partition], (session_us, unconfirmed_us)).run()
    _check_generations(history, findings)
    _check_zombies(history, findings)
    _check_shares(history, findings)
    return findings


class _PartitionCheck:
    def __init__(
        self,
        history: GroupHistory,
        findings: Findings,
        partition: int,
        owners: list[Ownership],
        times_us: tuple[int, int],
    ) -> None:
        self._history = history
        self._findings = findings
        self._partition = partition
        self._owners = owners
        self._commits = [one for one in history.commits if partition in one.offsets]
        self._acked = [one for one in self._commits if one.outcome is Outcome.ACKED]
        session_us, self._unconfirmed_us = times_us
        self._slack_us = 3 * session_us

    def run(self) -> None:
        self._check_one_owner()
        self._check_former_owners()
        self._check_ends()
        for owner in self._owners:
            if owner.processed:
                self._check_beginning(owner)
                self._check_steps(owner)
        self._check_processed()

    def _found(self, anomaly: Anomaly, sentence: str) -> None:
        self._findings.add(anomaly, f"partition {self._partition}: {sentence}")

    # Ownership

    def _check_one_owner(self) -> None:
        first_of: dict[int, Ownership] = {}
        for owner in self._owners:
            if owner.generation == NOT_KNOWN:
                continue
            first = first_of.setdefault(owner.generation, owner)
            if first.member != owner.member:
                self._found(Anomaly.TWO_OWNERS, f"{first}; {owner}")
        for first, second in self._overlaps():
            if not self._is_excused(first, second):
                self._found(Anomaly.OVERLAP, f"{first}; {second}")

    def _overlaps(self) -> Iterator[tuple[Ownership, Ownership]]:
        for number, second in enumerate(self._owners):
            for first in self._owners[:number]:
                if first.member != second.member and (first.ended_us is None or first.ended_us > second.began_us):
                    yield first, second

    def _is_excused(self, first: Ownership, second: Ownership) -> bool:
        """Returns whether one of them lost its session: it was notified, was paused, or died before it could know."""
        if End.LOST in (first.end, second.end) or self._is_unconfirmed(first, second):
            return True
        around = Span(second.began_us - self._slack_us, _end_us(first))
        if self._was_away(first.member, around) or self._was_away(second.member, around):
            return True
        if any(_meet(span, around) for span in self._history.disturbed):
            return True
        is_killed = first.end is End.KILLED
        return is_killed and any(_meet(span, around) for span in self._history.coordinator_away)

    def _is_unconfirmed(self, first: Ownership, second: Ownership) -> bool:
        return first.end is End.REVOKED and second.began_us - first.began_us < self._unconfirmed_us

    def _was_away(self, member: str, around: Span) -> bool:
        return any(_meet(span, around) for span in self._history.away.get(member, ()))

    def _check_former_owners(self) -> None:
        """Checks that a commit sent after another member owned the partition in a later generation is rejected."""
        for commit in self._acked:
            sender = self._owner_at(commit.member, commit.sent_us)
            if sender is None:
                self._found(Anomaly.BROKEN, f"{commit.member} committed without having it")
                continue
            for other in self._owners:
                if (
                    other.member != sender.member
                    and other.began_us < commit.sent_us
                    and NOT_KNOWN != sender.generation < other.generation
                    and not self._is_unconfirmed(sender, other)
                ):
                    self._found(
                        Anomaly.ZOMBIE_COMMIT, f"{sender.member} committed {commit.offsets[self._partition]}; {other}"
                    )

    def _owner_at(self, member: str, at_us: int) -> Ownership | None:
        for owner in self._owners:
            if owner.member == member and owner.began_us <= at_us <= _end_us(owner):
                return owner
        return None

    # Commits

    def _check_ends(self) -> None:
        committed = self._history.committed.get(self._partition, -1)
        highest = max((one.offsets[self._partition] for one in self._acked), default=-1)
        if committed < highest:
            self._found(Anomaly.COMMIT_LOST, f"{highest} was acknowledged, and in the end it is {committed}")
        log_end = self._history.log_ends.get(self._partition, 0)
        if committed != log_end:
            self._found(Anomaly.UNFINISHED, f"the log ends at {log_end}, and the group is at {committed}")

    def _check_beginning(self, owner: Ownership) -> None:
        at_us, start, _ = owner.processed[0]
        if self._was_away(owner.member, Span(owner.began_us - self._slack_us, at_us)):
            return  # the assignment may have been received long ago
        before = max((self._offset(one) for one in self._acked if _done_us(one) < owner.began_us), default=0)
        if start < before:
            self._found(Anomaly.WENT_BACK, f"{owner}, and began at {start}; {before} was committed before")
        # Also a rejected one: a library repeats a commit whose acknowledgement it missed.
        highest = max((self._offset(one) for one in self._commits if one.sent_us < at_us), default=0)
        if start > highest:
            self._found(Anomaly.SKIPPED, f"{owner}, and began at {start}; nobody committed more than {highest}")

    def _check_steps(self, owner: Ownership) -> None:
        for before, after in pairwise(owner.processed):
            if after.first > before.last + 1:
                self._found(Anomaly.SKIPPED, f"{owner}, and went from {before.last} to {after.first}")
            elif after.first <= before.last:
                self._found(Anomaly.WENT_BACK, f"{owner}, and went from {before.last} to {after.first}")

    def _check_processed(self) -> None:
        """Checks in the order of time that all records below a commit were processed by some member."""
        steps = [(run.at_us, run.first, run.last) for owner in self._owners for run in owner.processed]
        steps += [(one.sent_us, -1, self._offset(one)) for one in self._acked]
        done: set[int] = set()
        end = 0
        for _, first, last in sorted(steps):
            if first >= 0:
                done.update(range(max(first, end), last + 1))
                while end in done:
                    done.remove(end)
                    end += 1
            elif last > end:
                self._found(Anomaly.TOO_FAR, f"{last} was committed when {end} was not processed yet")
        if end < self._history.log_ends.get(self._partition, 0):
            self._found(
                Anomaly.UNPROCESSED, f"{end} is the first; the log ends at {self._history.log_ends[self._partition]}"
            )

    def _offset(self, commit: Commit) -> int:
        return commit.offsets[self._partition]


def _check_generations(history: GroupHistory, findings: Findings) -> None:
    last: dict[str, int] = {}
    for owner in history.ownerships:
        if owner.generation == NOT_KNOWN:
            continue
        before = last.get(owner.member, NOT_KNOWN)
        if owner.generation < before:
            findings.add(Anomaly.GENERATION_BACK, f"{owner}, after {before}")
        last[owner.member] = owner.generation


def _check_zombies(history: GroupHistory, findings: Findings) -> None:
    for one in history.zombies:
        if one.error == "none":
            findings.add(
                Anomaly.ZOMBIE_COMMIT, f"in the name of {one.member}, partition {one.partition}, as of {one.generation}"
            )


def _check_shares(history: GroupHistory, findings: Findings) -> None:
    """Checks the final assignment of the live members."""
    shares = {member: history.owned[member] for member in history.alive}
    for partition in history.log_ends:
        owners = [member for member, share in shares.items() if partition in share]
        if len(owners) != 1:
            findings.add(Anomaly.UNFINISHED, f"partition {partition} has the owners {owners}")
    sizes = [len(share) for share in shares.values()]
    if sizes and max(sizes) - min(sizes) > 1:
        findings.add(Anomaly.UNFINISHED, f"the members' shares are uneven: {sorted(sizes)}")


def _end_us(owner: Ownership) -> int:
    return owner.ended_us if owner.ended_us is not None else 1 << 62


def _done_us(commit: Commit) -> int:
    return commit.done_us if commit.done_us is not None else 1 << 62


def _meet(one: Span, other: Span) -> bool:
    return one.from_us < other.to_us and other.from_us < one.to_us
