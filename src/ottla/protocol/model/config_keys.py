"""The definition of a setting: its name, type, default, permitted values and a sentence of documentation.

The tables of these definitions are the only description of the configuration: parsing, DescribeConfigs and
`docs/reference/configuration.md` all read them. Values are transferred as strings, as in Kafka, and are parsed once.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from enum import IntEnum

from ottla.protocol.model.errors import ErrorCode, Refused

Value = bool | int | float | str | frozenset[str]

INT_MAX = 2**31 - 1
LONG_MAX = 2**63 - 1

_WHOLE_NUMBER = re.compile(r"[+-]?[0-9]{1,19}", re.ASCII)
_REPLICA = re.compile(r"(0|[1-9][0-9]{0,9}):(0|[1-9][0-9]{0,9})", re.ASCII)


class ConfigType(IntEnum):
    """The type of a value, with the numbers of the DescribeConfigs response."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    LONG = 5
    DOUBLE = 6
    LIST = 7
    PASSWORD = 9
    """A secret: never shown to clients, and never part of a message."""


@dataclass(frozen=True, slots=True)
class Range:
    """A number between two bounds; a missing bound is that of the type."""

    low: float | None = None
    high: float | None = None

    def permits(self, value: Value) -> bool:
        """Returns whether the number is within the bounds, both inclusive."""
        assert isinstance(value, int | float)
        return (self.low is None or value >= self.low) and (self.high is None or value <= self.high)

    def __str__(self) -> str:
        if self.high is None:
            return f"at least {self.low}"
        return f"between {self.low} and {self.high}"


@dataclass(frozen=True, slots=True)
class OneOf:
    """One of these words; for a list, at least one element, each one of these words."""

    words: tuple[str, ...]

    def permits(self, value: Value) -> bool:
        """Returns whether the word, or every word of a non-empty list, is one of `words`."""
        if isinstance(value, frozenset):
            return bool(value) and value <= set(self.words)
        return value in self.words

    def __str__(self) -> str:
        return "one of " + ", ".join(self.words)


@dataclass(frozen=True, slots=True)
class SpecialValueOr:
    """A range, or one special value outside it (gzip's -1)."""

    special: int
    range: Range

    def permits(self, value: Value) -> bool:
        """Returns whether the number is the special value or in the range."""
        return value == self.special or self.range.permits(value)

    def __str__(self) -> str:
        return f"{self.special} or {self.range}"


@dataclass(frozen=True, slots=True)
class OnlyValue:
    """The single permitted value, which disables a feature that Kafka has and Ottla does not."""

    value: Value
    reason: str
    """What is not available, as the second half of a sentence: "tiered storage is not available"."""

    def permits(self, value: Value) -> bool:
        """Returns whether this is the only permitted value."""
        return value == self.value

    def __str__(self) -> str:
        value = str(self.value).lower() if isinstance(self.value, bool) else str(self.value)
        return f"{value}, because {self.reason}"


@dataclass(frozen=True, slots=True)
class ReplicaList:
    """Replicas as PARTITION:BROKER, or `*` alone for all of them."""

    def permits(self, value: Value) -> bool:
        """Returns whether every element has the form PARTITION:BROKER, or the list is `*` alone."""
        assert isinstance(value, frozenset)
        return value == {"*"} or all(_REPLICA.fullmatch(word) for word in value)

    def __str__(self) -> str:
        return "* or a list of PARTITION:BROKER, such as 0:1,0:2"


def split_principals(text: str) -> list[str]:
    """Splits a list of principals at its semicolons. A name may contain commas."""
    return [word for word in (part.strip() for part in text.split(";")) if word]


@dataclass(frozen=True, slots=True)
class PrincipalList:
    """Principals as User:NAME, separated by semicolons."""

    def permits(self, value: Value) -> bool:
        """Returns whether every element has the form of a principal."""
        assert isinstance(value, str)
        return all(kind and name for kind, _, name in (word.partition(":") for word in split_principals(value)))

    def __str__(self) -> str:
        return "a list of principals, such as User:alice;User:bob"


Check = Range | OneOf | SpecialValueOr | OnlyValue | ReplicaList | PrincipalList


@dataclass(frozen=True, slots=True)
class Synonym:
    """A broker setting that provides the default of a topic setting, times a factor (hours to ms)."""

    name: str
    factor: int = 1
    default: str | None = None
    """The default of the broker setting, in its own unit. Of several synonyms, only the last has a default."""


@dataclass(frozen=True, slots=True)
class ConfigKey:
    """One setting of a broker or topic."""

    name: str
    type: ConfigType
    default: str | None
    doc: str
    check: Check | None = None
    synonyms: tuple[Synonym, ...] = ()
    """For a topic setting: the broker settings that provide its default; the first that is set wins."""
    dynamic: bool = True
    """True if it may be altered while the broker runs (for a topic setting: after the topic's creation)."""
    attribute_override: str | None = None

    @property
    def is_secret(self) -> bool:
        """Whether its value is never shown."""
        return self.type is ConfigType.PASSWORD

    @property
    def attribute(self) -> str:
        """The name of the field in the parsed configuration."""
        return self.attribute_override or self.name.removeprefix("ottla.").replace(".", "_").replace("-", "_")


def table(keys: Iterable[ConfigKey]) -> dict[str, ConfigKey]:
    """Returns the settings by name, sorted."""
    return {key.name: key for key in sorted(keys, key=lambda key: key.name)}


def parse_value(key: ConfigKey, text: str) -> Value | Refused:
    """Parses a value, or returns the reason why it is invalid."""
    value = _parse_type(key.type, text.strip())
    if value is None:
        return _invalid(key, text, f"it is not {_TYPE_WORDS[key.type]}")
    if key.check is not None and not key.check.permits(value):
        return _invalid(key, text, f"it must be {key.check}")
    return value


def unknown_name(kind: str, name: str, known: Mapping[str, ConfigKey]) -> Refused:
    """Rejects an unknown name, and suggests the most similar known one."""
    nearest = get_close_matches(name, known, n=1)
    hint = f" Did you mean {nearest[0]}?" if nearest else ""
    return Refused(ErrorCode.invalid_config, f"Unknown {kind} config name: {name}.{hint}")


_TYPE_WORDS = {
    ConfigType.BOOLEAN: "true or false",
    ConfigType.STRING: "a string",
    ConfigType.INT: "a 32-bit integer",
    ConfigType.LONG: "a 64-bit integer",
    ConfigType.DOUBLE: "a number",
    ConfigType.LIST: "a comma-separated list",
    ConfigType.PASSWORD: "a string",
}


def _invalid(key: ConfigKey, text: str, reason: str) -> Refused:
    if key.type is ConfigType.PASSWORD:
        return Refused(ErrorCode.invalid_config, f"Invalid value for configuration {key.name}: {reason}.")
    shown = text if len(text) <= 100 else text[:100] + "..."
    return Refused(ErrorCode.invalid_config, f"Invalid value {shown!r} for configuration {key.name}: {reason}.")


def _parse_type(type_: ConfigType, text: str) -> Value | None:
    match type_:
        case ConfigType.BOOLEAN:
            return {"true": True, "false": False}.get(text.lower())
        case ConfigType.INT:
            return _parse_integer(text, INT_MAX)
        case ConfigType.LONG:
            return _parse_integer(text, LONG_MAX)
        case ConfigType.DOUBLE:
            return _parse_double(text)
        case ConfigType.LIST:
            return frozenset(word for word in (part.strip() for part in text.split(",")) if word)
        case ConfigType.STRING | ConfigType.PASSWORD:
            return text


def _parse_integer(text: str, high: int) -> int | None:
    if _WHOLE_NUMBER.fullmatch(text) is None:
        return None
    value = int(text)
    return value if -high - 1 <= value <= high else None


def _parse_double(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if value == value else None  # NaN is not a valid setting
