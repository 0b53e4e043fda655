"""The history that members and the harness record: lines of tab-separated fields, one file per process.

    time  assigned   partitions generation member-id   it also owns these now; generation (or epoch) -1: unknown
    time  revoked    partitions                        given up in order
    time  lost       partitions                        taken away: it was told that it is no longer a member
    time  processed  partition:first-last ...          these records, in this order
    time  sends      number generation partition:offset ...   a commit
    time  acked      number                            acknowledged
    time  refused    number error                      not committed, unless it was sent twice
    time  unknown    number error                      may be committed or not
    time  stalled    since                             the process got no CPU time from then until now
    time  leaving    -                                 it stops processing and leaves the group

and in the file of the harness, where a member is named by its file:

    time  started|paused|resumed|killed|left  member
    time  away|back   coordinator's id
    time  zombie      member partition generation error   a commit in the name of a removed member
    time  end         partition offset                 the log's end after the run
    time  committed   partition offset                 the group's committed offset at that time
    time  broken      sentence                         a finding outside the history

Times are in microseconds of one monotonic clock, partitions separated by commas. The first line names the writer.
"""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

SUFFIX = ".history"
HARNESS = "harness"
NOT_KNOWN = -1


def now_us() -> int:
    return time.monotonic_ns() // 1000


class Recorder:
    """Writes lines unbuffered, so that they survive the death of the process."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def write(self, kind: str, *fields: object) -> None:
        line = "\t".join(map(str, (now_us(), kind, *fields)))
        os.write(self._file, line.replace("\n", " ").encode("ascii", "replace") + b"\n")


class End(StrEnum):
    OPEN = "open"
    REVOKED = "revoked"
    LOST = "lost"
    LEFT = "left"
    KILLED = "killed"


class Outcome(StrEnum):
    ACKED = "acked"
    REFUSED = "refused"
    UNKNOWN = "unknown"


class Processed(NamedTuple):
    at_us: int
    first: int
    last: int


@dataclass(slots=True)
class Ownership:
    """A period in which one member owned one partition."""

    member: str
    partition: int
    generation: int
    member_id: str
    began_us: int
    ended_us: int | None = None
    end: End = End.OPEN
    processed: list[Processed] = field(default_factory=list)

    def __str__(self) -> str:
        return f"{self.member} had {self.partition} in generation {self.generation}, {self.end}"


@dataclass(slots=True)
class Commit:
    member: str
    generation: int
    offsets: Mapping[int, int]
    sent_us: int
    outcome: Outcome = Outcome.UNKNOWN
    done_us: int | None = None
    error: str = ""


class Span(NamedTuple):
    from_us: int
    to_us: int


class ZombieCommit(NamedTuple):
    member: str
    partition: int
    generation: int
    error: str


@dataclass(slots=True)
class GroupHistory:
    """A history, built line by line so that a run can follow it."""

    ownerships: list[Ownership] = field(default_factory=list)
    commits: list[Commit] = field(default_factory=list)
    owned: defaultdict[str, dict[int, Ownership]] = field(default_factory=lambda: defaultdict(dict))
    """The partitions that each member owns now."""
    away: defaultdict[str, list[Span]] = field(default_factory=lambda: defaultdict(list))
    """The periods in which each member was paused or got no CPU time."""
    coordinator_away: list[Span] = field(default_factory=list)
    disturbed: list[Span] = field(default_factory=list)
    """The periods in which members may be unable to reach their coordinator."""
    alive: set[str] = field(default_factory=set)
    strays: list[str] = field(default_factory=list)
    """Records that a member processed without owning the partition."""
    zombies: list[ZombieCommit] = field(default_factory=list)
    log_ends: dict[int, int] = field(default_factory=dict)
    committed: dict[int, int] = field(default_factory=dict)
    broken: list[str] = field(default_factory=list)
    events: defaultdict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    """Times of the harness's events, by kind."""
    _numbered: dict[tuple[str, str], Commit] = field(default_factory=dict)
    _since_us: dict[str, int] = field(default_factory=dict)

    def last_generation(self, member: str) -> int:
        """The generation of its last commit."""
        return max((one.generation for one in self.commits if one.member == member), default=NOT_KNOWN)

    def add(self, process: str, line: str) -> None:
        at, kind, *rest = line.split("\t")
        if process == HARNESS:
            self._add_of_harness(int(at), kind, rest)
        elif kind in tuple(Outcome):
            self._answer(int(at), process, kind, rest)
        else:
            self._add_of_member(int(at), process, kind, rest)

    def _add_of_member(self, at_us: int, member: str, kind: str, rest: Sequence[str]) -> None:
        if kind == "assigned":
            for partition in _partitions(rest[0]):
                self._give_up(at_us, member, (partition,), End.LOST)  # the library did not report it
                one = Ownership(member, partition, int(rest[1]), rest[2], at_us)
                self.ownerships.append(one)
                self.owned[member][partition] = one
        elif kind in ("revoked", "lost"):
            self._give_up(at_us, member, _partitions(rest[0]), End(kind))
        elif kind == "leaving":
            self._give_up(at_us, member, tuple(self.owned[member]), End.LEFT)
        elif kind == "processed":
            self._process(at_us, member, rest)
        elif kind == "sends":
            offsets = dict(_pair(text) for text in rest[2:])
            commit = Commit(member, int(rest[1]), offsets, at_us)
            self._numbered[member, rest[0]] = commit
            self.commits.append(commit)
        elif kind == "stalled":
            self.away[member].append(Span(int(rest[0]), at_us))
        else:
            raise ValueError(f"a member has no lines of the kind {kind}")

    def _give_up(self, at_us: int, member: str, partitions: Iterable[int], end: End) -> None:
        for partition in partitions:
            one = self.owned[member].pop(partition, None)
            if one is not None:
                one.ended_us, one.end = at_us, end

    def _process(self, at_us: int, member: str, runs: Sequence[str]) -> None:
        for text in runs:
            partition, _, span = text.partition(":")
            first, _, last = span.partition("-")
            one = self.owned[member].get(int(partition))
            if one is None:
                self.strays.append(f"{member} processed {text} without having it")
            else:
                one.processed.append(Processed(at_us, int(first), int(last)))

    def _answer(self, at_us: int, member: str, kind: str, rest: Sequence[str]) -> None:
        commit = self._numbered[member, rest[0]]
        commit.outcome, commit.done_us, commit.error = Outcome(kind), at_us, " ".join(rest[1:])

    def _add_of_harness(self, at_us: int, kind: str, rest: Sequence[str]) -> None:
        self.events[kind].append(at_us)
        if kind == "started":
            self.alive.add(rest[0])
        elif kind in ("killed", "left"):
            self.alive.discard(rest[0])
            self._give_up(at_us, rest[0], tuple(self.owned[rest[0]]), End.KILLED)
        elif kind in ("paused", "away"):
            self._since_us[rest[0]] = at_us
        elif kind == "resumed":
            self.away[rest[0]].append(Span(self._since_us[rest[0]], at_us))
        elif kind == "back":
            self.coordinator_away.append(Span(self._since_us[rest[0]], at_us))
        elif kind == "zombie":
            self.zombies.append(ZombieCommit(rest[0], int(rest[1]), int(rest[2]), rest[3]))
        elif kind in ("end", "committed"):
            (self.log_ends if kind == "end" else self.committed)[int(rest[0])] = int(rest[1])
        elif kind == "broken":
            self.broken.append(rest[0])
        else:
            raise ValueError(f"the harness has no lines of the kind {kind}")


def _partitions(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(","))) if text else ()


def _pair(text: str) -> tuple[int, int]:
    partition, _, offset = text.partition(":")
    return int(partition), int(offset)


class Follower:
    """Reads the lines added to all files of a directory since the last call, in the order of time."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._read: dict[Path, int] = {}
        self.history = GroupHistory()

    def catch_up(self) -> GroupHistory:
        lines = [line for path in sorted(self._directory.glob(f"*{SUFFIX}")) for line in self._new_lines(path)]
        lines.sort(key=lambda line: int(line[1].split("\t", 1)[0]))
        for process, line in lines:
            self.history.add(process, line)
        return self.history

    def _new_lines(self, path: Path) -> Iterator[tuple[str, str]]:
        """Returns the complete new lines. A partial line follows the next time, or never if its process was killed."""
        with path.open("rb") as file:
            file.seek(self._read.get(path, 0))
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._read[path] = self._read.get(path, 0) + len(whole)
        for line in whole.decode("ascii").splitlines():
            yield path.stem, line


def read_history(directory: Path) -> GroupHistory:
    return Follower(directory).catch_up()
