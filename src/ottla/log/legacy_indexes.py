"""Renames the index files of earlier versions, which had the suffix of Kafka's offset indexes and another format.

A tool that is made for Kafka's files would take them for its own. Segments keep the suffix `.log`: they are in Kafka's
format.
"""

from __future__ import annotations

import errno
import re

from ottla.log.segment import INDEX_SUFFIX
from ottla.ports import FileSystem

LEGACY_SUFFIX = ".index"
_LEGACY = re.compile(r"\d{20}" + re.escape(LEGACY_SUFFIX))


def rename_legacy_indexes(files: FileSystem, directory: str) -> None:
    """Blocking, before anything else is done in the directory: whatever removes a segment removes its index by the
    current name.

    If both kinds exist, an earlier version has run since the current names were written, or this was interrupted. Then
    the files with the current names may be older than their segments, so they are removed; the start builds them again.
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
    # An old name that came back after a power cut could belong to another segment by then.
    files.sync_dir(directory)


def _rename(files: FileSystem, old: str, new: str) -> None:
    """On a full disk, a directory may have no room for the longer name. Then the index is built again."""
    try:
        files.rename(old, new)
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        files.remove(old)
