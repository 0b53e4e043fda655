"""`ottla connect file-sink`: writes topics to files, each record exactly once.

    INTO/TOPIC/partition=0/00000000000000000000-00000000000000100000.jsonl

The name of a file is its range of offsets, the end exclusive, and the next file begins where it ends. A restarted sink
lists the files and resumes at the end of the last one. Files appear atomically: on a disk, a file is written under a
temporary name, synced and renamed; an object store shows an object only when it is complete.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import fsspec

from ottla.client import Admin
from ottla.client.consumer.types import ConsumerRecord, TopicPartition
from ottla.connect.contract import DeadLetters
from ottla.connect.failures import ConnectorError, NeedsHelpError
from ottla.connect.files.formats import FORMATS, BadValueError
from ottla.file_sync import sync_directory

_NAME = re.compile(r"(\d{20})-(\d{20})\.(\w+)")
_UNFINISHED = ".unfinished"


@dataclass(frozen=True, slots=True)
class FileSinkSettings:
    """The settings of a file sink."""

    topics: list[str]
    into: str
    format: str = "jsonl"
    records_per_file: int = 100_000


@dataclass(slots=True)
class _Pending:
    """Offsets and records of one partition that are not in a file yet."""

    begin: int
    end: int
    records: list[ConsumerRecord] = field(default_factory=list)


class FileSink:
    """Implements `ottla.connect.contract.Sink`."""

    may_begin_late = True
    paused: Sequence[TopicPartition] = ()

    def __init__(self, settings: FileSinkSettings, bootstrap: str) -> None:
        if settings.format not in FORMATS:
            raise NeedsHelpError(f'there is no format "{settings.format}"; there are {", ".join(FORMATS)}')
        self._settings = settings
        self._bootstrap = bootstrap
        self.topics = settings.topics
        self._check, self._encode = FORMATS[settings.format]
        self._pending: dict[TopicPartition, _Pending] = {}
        self._next: dict[TopicPartition, int] = {}
        self._files = 0

    def describe(self) -> dict[str, Any]:
        return {"files": self._files}

    async def start(self, dead_letters: DeadLetters) -> Mapping[TopicPartition, int]:
        self._dead_letters = dead_letters
        try:
            self._store, root = fsspec.core.url_to_fs(self._settings.into)
        except (ValueError, ImportError) as failure:
            raise NeedsHelpError(f"{self._settings.into}: {failure}") from failure
        self._root = root.rstrip("/")
        self._is_local = isinstance(self._store, fsspec.implementations.local.LocalFileSystem)
        partitions = await self._partitions()
        self._next = {
            each: end for each in partitions if (end := await asyncio.to_thread(self._end_of, each)) is not None
        }
        return self._next

    async def _partitions(self) -> list[TopicPartition]:
        async with Admin(self._bootstrap) as admin:
            counts = {each.name: each.partition_count for each in await admin.list_topics(internal=True)}
        for missing in (each for each in self.topics if each not in counts):
            raise NeedsHelpError(f'there is no topic "{missing}"; create it with: ottla topics create {missing}')
        return [TopicPartition(topic, index) for topic in self.topics for index in range(counts[topic])]

    def _directory(self, at: TopicPartition) -> str:
        return f"{self._root}/{at.topic}/partition={at.partition}"

    def _end_of(self, at: TopicPartition) -> int | None:
        """Returns the offset at which the files of a partition end. Raises NeedsHelpError if there is a gap or an
        overlap."""
        try:
            names = [path.rsplit("/", 1)[-1] for path in self._store.ls(self._directory(at), detail=False)]
        except FileNotFoundError:
            return None
        found = sorted((int(each[1]), int(each[2])) for name in names if (each := _NAME.fullmatch(name)))
        for (_, end), (begin, _) in pairwise(found):
            if begin != end:
                raise NeedsHelpError(
                    f"{self._directory(at)}: the files end at offset {end} and continue at {begin}; files were "
                    "removed, or another sink writes there. Choose another directory"
                )
        return found[-1][1] if found else None

    async def put(self, records: Sequence[ConsumerRecord]) -> None:
        for record in records:
            pending = self._pending.get(record.at)
            if pending is None:
                begin = self._next.get(record.at, record.offset)
                pending = self._pending[record.at] = _Pending(begin, begin)
            try:
                self._check(record)
                pending.records.append(record)
            except BadValueError as reason:
                await self._dead_letters(record, str(reason))
            pending.end = record.offset + 1
            if len(pending.records) >= self._settings.records_per_file:
                await self._write(record.at)

    async def commit(self) -> None:
        for at in list(self._pending):
            await self._write(at)

    async def _write(self, at: TopicPartition) -> None:
        pending = self._pending.pop(at)
        name = f"{pending.begin:020d}-{pending.end:020d}.{self._settings.format}"
        data = self._encode(pending.records)
        try:
            await asyncio.to_thread(self._store_file, self._directory(at), name, data)
        except OSError as failure:
            raise ConnectorError(f"{self._directory(at)}/{name}: {failure.strerror or failure}") from failure
        self._next[at] = pending.end
        self._files += 1

    def _store_file(self, directory: str, name: str, data: bytes) -> None:
        path = f"{directory}/{name}"
        if not self._is_local:
            self._store.pipe_file(path, data)
            return
        os.makedirs(directory, exist_ok=True)
        unfinished = f"{directory}/.{name}{_UNFINISHED}"  # hidden from readers that match by prefix or by suffix
        with open(unfinished, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.rename(unfinished, path)
        sync_directory(directory)

    async def stop(self) -> None:
        """Does nothing: records that are not in a file yet are fetched again after a restart."""
