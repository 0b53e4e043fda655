"""Extracts the fenced code blocks of a page, for tests that run them as a reader would."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
FENCED = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FILE_NAME = re.compile(r"# ([\w.]+\.py)\n")


class Block(NamedTuple):
    language: str
    text: str

    @property
    def file_name(self) -> str | None:
        """Returns the file name that the first line of a script gives."""
        found = FILE_NAME.match(self.text)
        return None if found is None else found[1]


def blocks(page: str) -> list[Block]:
    return [Block(*found) for found in FENCED.findall((ROOT / page).read_text(encoding="utf-8"))]
