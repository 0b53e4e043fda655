"""Snapshots: the state at one position of its log, published completely or not at all.

    store = SnapshotStore("snapshots")                # or s3://bucket/orders, with fsspec
    store.publish(applier.dump(), position)
    for snapshot in store.snapshots(): ...            # the newest first

A snapshot consists of two files, `NAME.data` and `NAME.json`. The second is the manifest; it is written last and makes
the snapshot valid. The data is a sequence of frames (u32 length, u32 checksum, content). Each checksum (CRC32C)
continues from the one before it, so a frame that is damaged, missing, duplicated or out of place is detected before
anyone uses it. The manifest contains the last checksum and a CRC32C of itself.
"""

from __future__ import annotations

import json
import os
import struct
import time
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass

from crc32c import crc32c

from ottla.recovery.appliers import Position
from ottla.recovery.errors import DamagedSnapshotError
from ottla.recovery.points import END, Point
from ottla.recovery.snapshot_files import SnapshotFiles, open_files

VERSION = 1
KEEP = 2
FRAME_BYTES_MAX = 1 << 30
_FRAME = struct.Struct("<II")
_MANIFEST, _DATA = ".json", ".data"


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The manifest of a published snapshot."""

    name: str
    position: Position
    created_ms: int
    size_bytes: int
    frame_count: int
    crc: int


class SnapshotStore:
    """Publishes, lists, reads and prunes snapshots; keeps the newest `keep`.

    A damaged snapshot stays until newer ones replace it; it is reported and not used.

        store = SnapshotStore("s3://bucket/orders", keep=3)
        store.publish(tables.dump(), recovered.position)
    """

    def __init__(self, place: str | os.PathLike[str], *, keep: int = KEEP) -> None:
        if keep < 1:
            raise ValueError(f"keep must be at least 1: keep={keep}")
        self.keep = keep
        self._files: SnapshotFiles = open_files(place)

    def publish(self, frames: Iterable[bytes], position: Position) -> Snapshot:
        """Writes a snapshot to stable storage, then prunes older ones. Blocks: use a thread in asyncio code."""
        name = f"{position.next_offset:020d}-{uuid.uuid4().hex[:8]}"
        packing = _FrameEncoder(frames)
        self._files.write(name + _DATA, packing)
        snapshot = Snapshot(
            name, position, time.time_ns() // 1_000_000, packing.size_bytes, packing.frame_count, packing.crc
        )
        self._files.write(name + _MANIFEST, [_manifest_bytes(snapshot)])
        self._prune(name)
        return snapshot

    def snapshots(self, until: Point = END) -> Iterator[Snapshot | DamagedSnapshotError]:
        """Yields the snapshots with nothing after the point, newest first; for a damaged manifest, yields the error."""
        for name in reversed(self._names()):
            try:
                snapshot = self._read_manifest(name)
            except DamagedSnapshotError as damage:
                yield damage
                continue
            if until.allows(snapshot.position):
                yield snapshot

    def frames(self, snapshot: Snapshot) -> Iterator[bytes]:
        """Yields the frames, each verified first, and checks at the end that none is missing.

        Raises DamagedSnapshotError.
        """
        try:
            yield from _unpack(snapshot, self._files.blocks(snapshot.name + _DATA))
        except OSError as error:
            raise DamagedSnapshotError(snapshot.name, f"its data cannot be read ({error})") from error

    def verify(self, snapshot: Snapshot) -> None:
        """Reads the whole snapshot. Raises DamagedSnapshotError."""
        for _ in self.frames(snapshot):
            pass

    def trim_offset(self) -> int | None:
        """Returns the offset before which no kept snapshot needs the log, or None with fewer than `keep` readable ones.

        Each snapshot is read completely first: the log must not be trimmed because of a snapshot that is unusable.
        """
        begins: list[int] = []
        for found in self.snapshots():
            if isinstance(found, DamagedSnapshotError):
                continue
            try:
                self.verify(found)
            except DamagedSnapshotError:
                continue
            begins.append(found.position.begin_offset)
            if len(begins) == self.keep:
                return min(begins)
        return None

    def _names(self) -> list[str]:
        return [name.removesuffix(_MANIFEST) for name in self._files.names() if name.endswith(_MANIFEST)]

    def _read_manifest(self, name: str) -> Snapshot:
        try:
            content = b"".join(self._files.blocks(name + _MANIFEST))
            body, crc = json.loads(content)
            if crc != crc32c(json.dumps(body).encode()) or body["name"] != name or body["version"] != VERSION:
                raise ValueError("its checksum, name or version is wrong")
            fields = {key: value for key, value in body.items() if key not in ("version", "position")}
            return Snapshot(**fields, position=Position(**body["position"]))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise DamagedSnapshotError(name, f"its manifest cannot be read ({error})") from error

    def _prune(self, newest: str) -> None:
        """Removes old snapshots, manifest first because data without a manifest is no snapshot, then stray older files.

        Stray files are left behind by writers that died. Of several snapshots at the same offset, the one just written
        stays, because the others may be damaged.
        """
        names = sorted(self._names(), key=lambda name: (name.split("-")[0], name == newest, name))
        kept = names[-self.keep :]
        for name in names[: -self.keep]:
            self._files.remove(name + _MANIFEST)
            self._files.remove(name + _DATA)
        for file in self._files.names():
            if file < min(kept) and not file.endswith(_MANIFEST):
                self._files.remove(file)


class _FrameEncoder:
    """Adds a checksum to each frame and keeps the totals for the manifest."""

    def __init__(self, frames: Iterable[bytes]) -> None:
        self._frames = frames
        self.size_bytes = self.frame_count = self.crc = 0

    def __iter__(self) -> Iterator[bytes]:
        for frame in self._frames:
            if not 0 < len(frame) <= FRAME_BYTES_MAX:
                raise ValueError(f"a frame of a snapshot must have 1 to {FRAME_BYTES_MAX} bytes, not {len(frame)}")
            self.crc = crc32c(frame, self.crc)
            self.frame_count += 1
            self.size_bytes += _FRAME.size + len(frame)
            yield _FRAME.pack(len(frame), self.crc)
            yield frame


def _unpack(snapshot: Snapshot, blocks: Iterator[bytes]) -> Iterator[bytes]:
    held = bytearray()
    crc = count = size_bytes = 0
    for block in blocks:
        held += block
        size_bytes += len(block)
        at = 0
        while len(held) - at >= _FRAME.size:
            length, expected = _FRAME.unpack_from(held, at)
            if not 0 < length <= min(FRAME_BYTES_MAX, snapshot.size_bytes):
                raise DamagedSnapshotError(snapshot.name, f"frame {count} has an invalid length of {length} bytes")
            end = at + _FRAME.size + length
            if end > len(held):
                break
            frame = bytes(memoryview(held)[at + _FRAME.size : end])
            crc = crc32c(frame, crc)
            if crc != expected:
                raise DamagedSnapshotError(snapshot.name, f"the checksum of frame {count} is wrong")
            yield frame
            count += 1
            at = end
        del held[:at]
    if held or (count, crc, size_bytes) != (snapshot.frame_count, snapshot.crc, snapshot.size_bytes):
        raise DamagedSnapshotError(snapshot.name, f"it has {size_bytes} of {snapshot.size_bytes} bytes")


def _manifest_bytes(snapshot: Snapshot) -> bytes:
    body = {"version": VERSION, **asdict(snapshot)}
    return json.dumps([body, crc32c(json.dumps(body).encode())]).encode()
