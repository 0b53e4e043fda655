"""The manifest of an archive: which offsets were read, and which files contain their records.

The state is a fold over the commits. It records inconsistencies instead of rejecting them, so that `verify` can report
them: overlapping ranges stay separate, and a path that was added twice is remembered.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from ottla.archive.commits import CHECKPOINT_EVERY, CommitLog, Json
from ottla.archive.ranges import OffsetRange, joined
from ottla.archive.store import Store
from ottla.client.consumer.types import TopicPartition

DATA = "data"
DIRECTORY = "_manifest"
Ranges = dict[TopicPartition, list[OffsetRange]]


@dataclass(frozen=True, slots=True)
class ArchivedFile:
    """A file with records of one partition and one day (UTC, by their timestamps), ordered by offset."""

    path: str
    topic: str
    partition: int
    date: str
    first_offset: int
    last_offset: int
    rows: int
    size_bytes: int
    crc32c: int
    timestamp_min_ms: int
    timestamp_max_ms: int

    @property
    def at(self) -> TopicPartition:
        """The partition whose records the file contains."""
        return TopicPartition(self.topic, self.partition)

    @property
    def span(self) -> OffsetRange:
        """From the first record to the last. Files of other days may have offsets in between."""
        return OffsetRange(self.first_offset, self.last_offset + 1)


@dataclass
class Manifest:
    """The state after all commits."""

    commit_count: int = 0
    ranges: Ranges = field(default_factory=dict)
    """The ranges that were read, in commit order."""
    lost: Ranges = field(default_factory=dict)
    """Ranges that were deleted before they were read, and whose loss the operator accepted."""
    files: dict[str, ArchivedFile] = field(default_factory=dict)
    retired: dict[str, int] = field(default_factory=dict)
    """Files that were merged into others, and when (ms). They are deleted some time later."""
    added_twice: list[str] = field(default_factory=list)

    def end_of(self, at: TopicPartition) -> int | None:
        """Returns the offset at which reading resumes; None if nothing of the partition was read."""
        known = self.ranges.get(at, []) + self.lost.get(at, [])
        return max((each.end for each in known), default=None)

    def archived(self, at: TopicPartition) -> list[OffsetRange]:
        """Returns the archived ranges of a partition, merged and in order."""
        return joined(self.ranges.get(at, []))

    def partitions(self, topic: str | None = None) -> list[TopicPartition]:
        """Returns the partitions with archived or lost ranges, sorted; all topics unless one is given."""
        return sorted(at for at in self.ranges.keys() | self.lost.keys() if topic in (None, at.topic))

    def topics(self) -> list[str]:
        """Returns the names of the archived topics, sorted."""
        return sorted({at.topic for at in self.partitions()})

    def files_of(self, at: TopicPartition) -> list[ArchivedFile]:
        """Returns the files of one partition, ordered by their first offsets."""
        mine = [each for each in self.files.values() if each.at == at]
        return sorted(mine, key=lambda each: (each.first_offset, each.path))


@dataclass(frozen=True, slots=True)
class Change:
    """One commit, which is applied atomically."""

    kind: str
    at_ms: int
    ranges: Mapping[TopicPartition, OffsetRange] = field(default_factory=dict)
    lost: Mapping[TopicPartition, OffsetRange] = field(default_factory=dict)
    added: Iterable[ArchivedFile] = ()
    removed: Iterable[str] = ()


class ManifestLog:
    """The commits of a manifest."""

    def __init__(self, store: Store) -> None:
        self._log = CommitLog(store, DIRECTORY)

    def load(self) -> Manifest:
        """Loads the manifest. Raises DamagedError if commits are missing or unreadable."""
        count, manifest = self._log.fold(Manifest(), _from_checkpoint, _apply)
        manifest.commit_count = count
        return manifest

    def commit(self, manifest: Manifest, change: Change) -> Manifest:
        """Commits a change and returns the new manifest. Raises PipelineError if another job has committed
        meanwhile."""
        number = manifest.commit_count
        body = _change_as_json(change)
        self._log.append(number, body)
        after = _apply(manifest, number, body)
        after.commit_count = number + 1
        if number % CHECKPOINT_EVERY == CHECKPOINT_EVERY - 1:
            self._log.write_checkpoint(number, _as_checkpoint(after))
        return after


def _apply(manifest: Manifest, number: int, body: Json) -> Manifest:
    for row in body["ranges"]:
        _append(manifest.ranges, row)
    for row in body["lost"]:
        _append(manifest.lost, row)
    for path in body["removed"]:
        manifest.files.pop(path, None)
        manifest.retired[path] = body["at_ms"]
    for entry in body["added"]:
        file = ArchivedFile(**entry)
        if file.path in manifest.files:
            manifest.added_twice.append(file.path)
        manifest.files[file.path] = file
    return manifest


def _append(ranges: Ranges, row: list[Any]) -> None:
    """Appends a range. Adjacent ranges are merged; overlapping ones are not."""
    topic, partition, start, end = row
    known = ranges.setdefault(TopicPartition(topic, partition), [])
    if known and known[-1].end == start:
        known[-1] = OffsetRange(known[-1].start, end)
    else:
        known.append(OffsetRange(start, end))


def _change_as_json(change: Change) -> Json:
    return {
        "kind": change.kind,
        "at_ms": change.at_ms,
        "ranges": [[*at, each.start, each.end] for at, each in sorted(change.ranges.items())],
        "lost": [[*at, each.start, each.end] for at, each in sorted(change.lost.items())],
        "added": [asdict(each) for each in change.added],
        "removed": sorted(change.removed),
    }


def _as_checkpoint(manifest: Manifest) -> Json:
    def rows(ranges: Ranges) -> list[list[Any]]:
        return [[*at, each.start, each.end] for at, many in sorted(ranges.items()) for each in many]

    return {
        "ranges": rows(manifest.ranges),
        "lost": rows(manifest.lost),
        "files": [asdict(each) for each in manifest.files.values()],
        "retired": manifest.retired,
        "added_twice": manifest.added_twice,
    }


def _from_checkpoint(body: Json) -> Manifest:
    manifest = Manifest(retired=dict(body["retired"]), added_twice=list(body["added_twice"]))
    for row in body["ranges"]:
        _append(manifest.ranges, row)
    for row in body["lost"]:
        _append(manifest.lost, row)
    manifest.files = {entry["path"]: ArchivedFile(**entry) for entry in body["files"]}
    return manifest
