"""Records how far a log has been compacted: below that offset, no key occurs twice.

The mark is a file in the log's directory. Without it everything is compacted again, which costs only time. A mark above
the log's end belongs to records that were truncated since; it is removed before other records take their place.
"""

from __future__ import annotations

from struct import Struct

import crc32c

from ottla.ports import FileSystem

MARK_FILE = "compacted"
_MAGIC = b"OTLK"
_VERSION = 1
_MARK = Struct(">4sHqI")
"""magic, version, offset, CRC of the preceding fields"""
_CRC_AT = _MARK.size - 4


def encode_mark(offset: int) -> bytes:
    """Returns the content of the mark file, with its CRC."""
    plain = _MARK.pack(_MAGIC, _VERSION, offset, 0)
    return _MARK.pack(_MAGIC, _VERSION, offset, crc32c.crc32c(plain[:_CRC_AT]))


def decode_mark(data: bytes) -> int:
    """Decodes a mark; 0 if it was not written completely."""
    if len(data) != _MARK.size:
        return 0
    magic, version, offset, crc = _MARK.unpack(data)
    is_whole = magic == _MAGIC and version == _VERSION and crc == crc32c.crc32c(data[:_CRC_AT])
    return offset if is_whole and offset >= 0 else 0


def write_mark(files: FileSystem, directory: str, offset: int) -> None:
    """Writes the mark durably. Blocking."""
    files.replace_file(f"{directory}/{MARK_FILE}", encode_mark(offset))


def load_mark(files: FileSystem, directory: str, end_offset: int) -> int:
    """Reads the mark of a log that ends at `end_offset`. Blocking."""
    path = f"{directory}/{MARK_FILE}"
    if not files.exists(path):
        return 0
    offset = decode_mark(files.read_file(path))
    if offset <= end_offset:
        return offset
    files.remove(path)
    files.sync_dir(directory)
    return 0
