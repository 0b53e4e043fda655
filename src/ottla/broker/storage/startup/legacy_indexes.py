"""Renames the index files of earlier versions, which used the suffix of Kafka's offset indexes for a different format.

A tool made for Kafka's files would mistake them for its own. Segments keep the suffix `.log`: they are in Kafka's
format.
"""

from __future__ import annotations

import errno
import re

from ottla.broker.storage.segment import INDEX_SUFFIX
from ottla.ports import FileSystem

LEGACY_SUFFIX = ".index"
_LEGACY = re.compile(r"\d{20}" + re.escape(LEGACY_SUFFIX))


def rename_legacy_indexes(files: FileSystem, directory: str) -> None:
    """Renames the legacy indexes in a log's directory. Blocking. It must run before anything else in the directory,
    because removing a segment removes its index by the current name only.

    If both kinds exist, either an earlier version has run since the current names were written, or this function was
    interrupted. The files with the current names may then be older than their segments, so they are removed and rebuilt
    at start-up.
    """
    names = files.list_dir(directory) if files.exists(directory) else []
    legacy = [name for name in names if _LEGACY.fullmatch(name)]
    if not legacy:
        return
    for name in names:
        if name.endswith(INDEX_SUFFIX):
            files.remove(f"{directory}/{name}")
    for name in legacy:
        _rename(files, f"{directory}/{name}", f"{directory}/{name.removesuffix(LEGACY_SUFFIX)}{INDEX_SUFFIX}")
    # If a power cut restored an old name, it could belong to another segment by then.
    files.sync_dir(directory)


def _rename(files: FileSystem, old: str, new: str) -> None:
    """Renames an index. On a full disk, a directory may have no room for the longer name; the index is then rebuilt."""
    try:
        files.rename(old, new)
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        files.remove(old)
