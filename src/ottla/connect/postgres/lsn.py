"""Log sequence numbers (LSNs), written as `16/B374D848`. Pure."""

from __future__ import annotations

import re

_TEXT = re.compile(r"([0-9A-Fa-f]{1,8})/([0-9A-Fa-f]{1,8})")


def parse_lsn(text: str) -> int:
    """Parses an LSN. Raises ValueError if the text is not one."""
    found = _TEXT.fullmatch(text)
    if found is None:
        raise ValueError(f'"{text}" is not an LSN such as 16/B374D848')
    return int(found[1], 16) << 32 | int(found[2], 16)


def lsn_text(lsn: int) -> str:
    """Formats an LSN."""
    return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"
