"""Parses the text of options into numbers, booleans, durations and offsets, with clear errors."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from ottla.client import TopicPartition

_UNITS_MS = {"ms": 1, "s": 1_000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}


class OptionError(ValueError):
    """An option is invalid. The message says which one, and what it may be."""

    def __init__(self, name: str, text: str, sentence: str) -> None:
        super().__init__(f"option {name}={text!r} {sentence}" if text else f"option {name} {sentence}")


def to_int(name: str, text: str) -> int:
    """Parses a whole number. Raises OptionError."""
    try:
        return int(text.strip())
    except ValueError:
        raise OptionError(name, text, "must be an integer") from None


def to_positive(name: str, text: str) -> int:
    """Parses a whole number of at least 1. Raises OptionError."""
    number = to_int(name, text)
    if number < 1:
        raise OptionError(name, text, "must be at least 1")
    return number


def to_bool(name: str, text: str) -> bool:
    """Parses `true` or `false`, in any case. Raises OptionError."""
    if text.strip().lower() not in {"true", "false"}:
        raise OptionError(name, text, "must be true or false")
    return text.strip().lower() == "true"


def to_milliseconds(name: str, text: str) -> int:
    """Parses a duration as Spark writes it: 15m, 30s, 500ms. A number without a unit is milliseconds."""
    found = re.fullmatch(r"\s*(\d+)\s*([a-z]*)\s*", text.lower())
    if found is None or (found.group(2) or "ms") not in _UNITS_MS:
        raise OptionError(name, text, "must be a duration such as 500ms, 30s or 15m")
    return int(found.group(1)) * _UNITS_MS[found.group(2) or "ms"]


def to_partitions(name: str, text: str) -> list[TopicPartition]:
    """Parses partitions from JSON such as `{"orders":[0,1]}`. Returns them sorted. Raises OptionError."""
    example = 'must be JSON such as {"orders":[0,1],"bills":[0]}'
    found = _json_of_topics(name, text, example)
    try:
        return sorted({TopicPartition(topic, _whole(each)) for topic, indexes in found.items() for each in indexes})
    except (TypeError, ValueError):
        raise OptionError(name, text, example) from None


def to_numbers(name: str, text: str, example: str) -> dict[TopicPartition, int]:
    """Parses offsets or times by partition."""
    found = _json_of_topics(name, text, example)
    try:
        return {
            TopicPartition(topic, _whole(index)): _whole(number)
            for topic, numbers in found.items()
            for index, number in numbers.items()
        }
    except (AttributeError, TypeError, ValueError):
        raise OptionError(name, text, example) from None


def _json_of_topics(name: str, text: str, example: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:
        raise OptionError(name, text, example) from None
    if not isinstance(found, dict) or not found:
        raise OptionError(name, text, example)
    return found


def _whole(value: Any) -> int:
    if isinstance(value, bool | float):
        raise TypeError(f"{value} is not an integer")
    return int(value)


def check_names(options: Mapping[str, str], known: Iterable[str]) -> None:
    """Rejects names that are close to a known option but not one: they would silently have no effect."""
    ours = {name.lower(): name for name in known}
    for name in options:
        if name.lower() in ours or name.lower().startswith("kafka."):
            continue
        near = difflib.get_close_matches(name.lower(), ours, n=1, cutoff=0.87)
        if near or name.lower().startswith("ottla."):
            meant = (
                f"; did you mean {ours[near[0]]}?" if near else f"; the options are {', '.join(sorted(ours.values()))}"
            )
            raise OptionError(name, "", f"is not an option{meant}")
