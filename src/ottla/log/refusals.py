"""Why a log takes nothing now, as sentences for a person."""

from __future__ import annotations

import errno


def sentence_for(error: OSError, directory: str) -> str:
    return full_disk(directory) if error.errno == errno.ENOSPC else f"{directory}: {error}"


def slow_disk(directory: str) -> str:
    return f"the disk of {directory} does not keep up, and the memory for what it has not taken yet is used up"


def full_disk(directory: str) -> str:
    return f"no space left on the disk of {directory}: free some, and writes go on by themselves"
