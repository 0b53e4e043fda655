"""A log of numbered commits, each a small JSON file that is created atomically.

Readers of an archive or a table read its commits and ignore files that no commit names. A crash can leave such files,
but never half a commit. Occasional checkpoints contain the state after a commit, so that a reader need not read all
commits.
"""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from crc32c import crc32c

from ottla.archive.failures import DamagedError, PipelineError
from ottla.archive.store import Store

FORMAT = 1
CHECKPOINT_EVERY = 50
_COMMIT = re.compile(r"(\d{20})\.json")
_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint\.json")

Json = dict[str, Any]
S = TypeVar("S")


@dataclass(frozen=True, slots=True)
class Listing:
    """The numbers of the commits and checkpoints in a directory."""

    commits: list[int]
    checkpoints: list[int]


class CommitLog:
    """The commits in one directory of a store, numbered from 0 without gaps."""

    def __init__(self, store: Store, directory: str) -> None:
        self._store = store
        self._directory = directory

    def list(self) -> Listing:
        """Returns the numbers of the commits and checkpoints that exist, in ascending order."""
        names = [posixpath.basename(each.path) for each in self._store.list_files(self._directory)]
        commits = [int(found.group(1)) for name in names if (found := _COMMIT.fullmatch(name))]
        checkpoints = [int(found.group(1)) for name in names if (found := _CHECKPOINT.fullmatch(name))]
        return Listing(sorted(commits), sorted(checkpoints))

    def read(self, number: int) -> Json:
        """Returns the content of one commit. Raises FileNotFoundError if it does not exist."""
        return self._read(self._commit_path(number))

    def fold(self, empty: S, load: Callable[[Json], S], apply: Callable[[S, int, Json], S]) -> tuple[int, S]:
        """Returns the number of commits and the state that they produce, starting from the last checkpoint.

        Raises DamagedError if a commit is missing.
        """
        listing = self.list()
        at = listing.checkpoints[-1] if listing.checkpoints else -1
        state = load(self._read(self._checkpoint_path(at))) if at >= 0 else empty
        last = max([at, *listing.commits])
        for number in range(at + 1, last + 1):
            if number not in listing.commits:
                raise DamagedError(f"{self._where(self._commit_path(number))} is missing, but later commits exist")
            state = apply(state, number, self.read(number))
        return last + 1, state

    def append(self, number: int, body: Json) -> None:
        """Writes a commit. Raises PipelineError if another job has written this number."""
        if not self._store.create(self._commit_path(number), _sealed(body)):
            raise PipelineError(f"another job wrote commit {number} of {self._store.root}; restart this job")

    def write_checkpoint(self, number: int, state: Json) -> None:
        """Writes the state after the commit with this number."""
        self._store.create(self._checkpoint_path(number), _sealed(state))

    def _read(self, path: str) -> Json:
        try:
            sealed = json.loads(self._store.read(path))
            body: Json = sealed["body"]
            intact = sealed["crc32c"] == crc32c(_text(body))
        except (ValueError, KeyError, TypeError) as cause:
            raise DamagedError(f"{self._where(path)} is not a commit: {cause}") from cause
        if not intact:
            raise DamagedError(f"{self._where(path)} does not match its checksum")
        if body.get("format") != FORMAT:
            raise DamagedError(
                f"{self._where(path)} has format {body.get('format')}; this version reads format {FORMAT}"
            )
        return body

    def _commit_path(self, number: int) -> str:
        return f"{self._directory}/{number:020d}.json"

    def _checkpoint_path(self, number: int) -> str:
        return f"{self._directory}/{number:020d}.checkpoint.json"

    def _where(self, path: str) -> str:
        return posixpath.join(self._store.root, path)


def _text(body: Json) -> bytes:
    return json.dumps(body, sort_keys=True, separators=(",", ":")).encode()


def _sealed(body: Json) -> bytes:
    body = {"format": FORMAT, **body}
    return json.dumps({"crc32c": crc32c(_text(body)), "body": body}, sort_keys=True, indent=1).encode() + b"\n"
