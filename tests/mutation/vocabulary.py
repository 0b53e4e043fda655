"""The names that operators know: syncs, reports, and quantities of the same kind."""

from __future__ import annotations

import re
from collections.abc import Iterable

SYNCS = frozenset(
    {
        "_sync",
        "_sync_dir",
        "fdatasync",
        "finish",
        "flush",
        "flush_everything",
        "fsync",
        "ottla_sync",
        "sync",
        "sync_as_a_whole",
        "sync_descriptor",
        "sync_dir",
        "sync_directory",
        "sync_path",
    }
)
"""Functions that make data durable."""

REPORTS = frozenset({"debug", "error", "exception", "info", "report", "warning", "_warn"})
"""Functions whose arguments only a person reads."""

COMMUTATIVE = frozenset({"max", "min", "isinstance", "issubclass", "getattr", "hasattr", "super", "print"})
"""Functions whose arguments are not swapped: the order does not matter, or swapping them always raises."""

KINDS = (
    ("high_watermark", "last_stable_offset", "log.end_offset", "log.start_offset"),
    ("end_offset", "start_offset", "acknowledged_end"),
    ("base_offset", "end_offset"),
    ("base_offset", "next_offset"),
    ("appended_end", "written_end", "synced_end", "allocated_end"),
    ("oldest_ms", "youngest_ms"),
    ("now_ms", "monotonic_ms"),
    ("watermark", "end_offset"),
    ("leader_epoch", "broker_epoch"),
    ("sync_queue", "segment_queue", "read_queue"),
)
"""Attributes that objects of one class have side by side, and that are easily taken for one another. A partition has
some of them in its log."""

SUFFIXES = ("_offset", "_end", "_ms", "_s", "_bytes", "_epoch", "_id", "_index", "_count", "_path", "_dir")
"""Variables with the same one of these hold quantities of the same kind."""

COMPARISONS = {"<": "<=", "<=": "<", ">": ">=", ">=": ">"}


def others_of_its_kind(name: str) -> list[str]:
    """Returns the attributes that a name may be confused with."""
    return sorted({other for kind in KINDS if name in kind for other in kind} - {name})


def suffix_of(name: str) -> str | None:
    return next((suffix for suffix in SUFFIXES if name.endswith(suffix) or name == suffix[1:]), None)


def is_sync(name: str) -> bool:
    return name in SYNCS or re.fullmatch(r"_*(?:make_)?sync_\w+", name) is not None


KnownAttributes = frozenset[tuple[str, str]]
"""Pairs of an owner and an attribute."""
ATTRIBUTE = re.compile(r"(\w+)\.(?=(\w+))")
PROPERTY_OR_FIELD = re.compile(r"^    (?:def (\w+)\(self|(\w+):)", re.MULTILINE)


def owner_of(expression: str, module: str) -> str:
    """Returns the last name of an expression, which by convention says what kind of object it is: `log` for both `log`
    and `partition.log`. Objects named `self` are told apart by their modules."""
    name = re.split(r"\W+", expression.rstrip(")]"))[-1]
    return f"self of {module}" if name == "self" else name


def known_attributes(sources: Iterable[tuple[str, str]]) -> KnownAttributes:
    """Returns the attributes that some module uses or defines. `sources` are the modules with their text."""
    known: set[tuple[str, str]] = set()
    for module, text in sources:
        known.update((owner_of(owner, module), name) for owner, name in ATTRIBUTE.findall(text))
        of_self = owner_of("self", module)
        known.update((of_self, method or name) for method, name in PROPERTY_OR_FIELD.findall(text))
    return frozenset(known)
