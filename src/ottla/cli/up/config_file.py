"""Reads a broker's configuration file, in Kafka's `.properties` format or in TOML.

Every setting is checked against the table of known settings, so that an error message can name the line. Settings that
only Kafka has are ignored and reported, unless a broker without them would be unsafe (`model.foreign_settings`).
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ottla.cli.failures import CommandError
from ottla.protocol.model.broker_config import BROKER_CONFIGS
from ottla.protocol.model.config_keys import ConfigKey, ConfigType, parse_value, table
from ottla.protocol.model.errors import Refused
from ottla.protocol.model.foreign_settings import notices, refusal
from ottla.protocol.model.listeners import (
    ADVERTISED,
    CONTROLLERS,
    INTER_BROKER,
    INTER_BROKER_PROTOCOL,
    LISTENERS,
    PROTOCOLS,
    ListenerTable,
    parse_listeners,
)
from ottla.protocol.model.security_keys import listener_key

BROKER_ID = "broker.id"

OURS = table(
    [
        ConfigKey(LISTENERS, ConfigType.STRING, None, "Where to listen: NAME://HOST:PORT,...", dynamic=False),
        ConfigKey(ADVERTISED, ConfigType.STRING, None, "Where clients and brokers connect.", dynamic=False),
        ConfigKey(INTER_BROKER, ConfigType.STRING, None, "The listener for the other brokers.", dynamic=False),
        ConfigKey(INTER_BROKER_PROTOCOL, ConfigType.STRING, None, "The same, by its protocol.", dynamic=False),
        ConfigKey(PROTOCOLS, ConfigType.STRING, None, "NAME:PROTOCOL for each listener.", dynamic=False),
        ConfigKey(CONTROLLERS, ConfigType.STRING, None, "Listeners to ignore.", dynamic=False),
        ConfigKey("log.dirs", ConfigType.STRING, None, "The data directory.", dynamic=False),
        ConfigKey("log.dir", ConfigType.STRING, None, "The data directory.", dynamic=False),
        ConfigKey(BROKER_ID, ConfigType.INT, None, "Kafka's former name of node.id.", dynamic=False),
    ]
)
"""Settings of the process for which `ottla up` also has options. The options take precedence."""

_KNOWN: Mapping[str, ConfigKey] = {**BROKER_CONFIGS, **OURS}


class Setting(NamedTuple):
    """One setting of a file and its line number."""

    name: str
    value: str
    line: int


class FileSettings(NamedTuple):
    """The settings of a configuration file, after validation."""

    properties: dict[str, str]
    """Settings passed to the broker."""
    listeners: ListenerTable = ListenerTable()
    data_dir: str | None = None
    notices: tuple[str, ...] = ()
    """Sentences about settings in the file that have no effect."""


def read_config_file(path: Path) -> FileSettings:
    """Reads and validates a configuration file. Raises FailedError with a message that names the file and the line."""
    settings = read_settings(path)
    problem = next(problems(settings), None)
    if problem is not None:
        line, message = problem
        raise CommandError(f"{path}, line {line}: {message}")
    values = {each.name: each.value for each in settings}
    foreign = [name for name in values if _find(name) is None]
    listened = [CONTROLLERS] if CONTROLLERS in values else []
    own = {name: value for name, value in values.items() if _find(name) is not None}
    return _split(own, path)._replace(notices=notices([*foreign, *listened], _KNOWN))


def read_settings(path: Path) -> list[Setting]:
    """Returns every setting of a file, unvalidated."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as cause:
        reason = cause.strerror if isinstance(cause, OSError) else "it is not text in UTF-8"
        raise CommandError(f"the configuration file {path} cannot be read: {reason}") from cause
    return list(_toml(text, path) if path.suffix == ".toml" else parse_properties(text))


def problems(settings: Iterable[Setting]) -> Iterator[tuple[int, str]]:
    """Yields the line number and the reason for each setting that prevents a broker from starting."""
    for name, value, line in settings:
        key = _find(name)
        problem = refusal(name, value, _KNOWN) if key is None else parse_value(key, value)
        if isinstance(problem, Refused):
            yield line, problem.message or f"{name} is not valid"


def _find(name: str) -> ConfigKey | None:
    return _KNOWN.get(name) or listener_key(name)


def _split(values: dict[str, str], path: Path) -> FileSettings:
    listeners = parse_listeners(values)
    if isinstance(listeners, Refused):
        raise CommandError(f"{path}: {listeners.message}")
    data_dir = values.get("log.dirs") or values.get("log.dir")
    if data_dir is not None and "," in data_dir:
        raise CommandError(f"{path}: log.dirs has several directories; a broker supports only one")
    properties = {name: value for name, value in values.items() if name not in OURS}
    broker_id = values.get(BROKER_ID, "-1").strip()
    if int(broker_id) >= 0 and int(properties.setdefault("node.id", broker_id)) != int(broker_id):
        raise CommandError(f"{path}: broker.id={broker_id} and node.id={properties['node.id']} must be equal")
    return FileSettings(properties, listeners, data_dir)


def parse_properties(text: str) -> Iterator[Setting]:
    """Parses Java's format: `#` and `!` begin comments, and a backslash at the end of a line continues it."""
    logical, started_at = "", 0
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.lstrip()
        if not logical:
            if not line or line[0] in "#!":
                continue
            started_at = number
        logical += line
        if _ends_with_odd_backslashes(logical):
            logical = logical[:-1]
            continue
        yield _key_and_value(logical, started_at)
        logical = ""
    if logical:
        yield _key_and_value(logical, started_at)


def _ends_with_odd_backslashes(line: str) -> bool:
    return (len(line) - len(line.rstrip("\\"))) % 2 == 1


def _key_and_value(line: str, number: int) -> Setting:
    """Splits a line into key and value. The key ends at the first unescaped `=`, `:` or blank."""
    at = 0
    while at < len(line) and line[at] not in "=: \t\f":
        at += 2 if line[at] == "\\" else 1
    rest = line[at:].lstrip(" \t\f")
    if rest[:1] in ("=", ":"):
        rest = rest[1:].lstrip(" \t\f")
    return Setting(_unescape(line[:at]), _unescape(rest).rstrip(), number)


def _unescape(text: str) -> str:
    if "\\" not in text:
        return text
    out: list[str] = []
    at = 0
    while at < len(text):
        character = text[at]
        at += 1
        if character != "\\" or at >= len(text):
            out.append(character)
            continue
        code = text[at]
        at += 1
        if code == "u" and len(text) >= at + 4:
            out.append(chr(int(text[at : at + 4], 16)))
            at += 4
        else:
            out.append({"t": "\t", "n": "\n", "r": "\r", "f": "\f"}.get(code, code))
    return "".join(out)


def _toml(text: str, path: Path) -> Iterator[Setting]:
    try:
        tree = tomllib.loads(text)
    except tomllib.TOMLDecodeError as cause:
        raise CommandError(f"{path} is not valid TOML: {cause}") from cause
    lines = text.splitlines()
    for name, value in _flatten(tree):
        yield Setting(name, value, _line_of(name, lines))


def _flatten(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for name, value in tree.items():
        if isinstance(value, Mapping):
            yield from _flatten(value, f"{prefix}{name}.")
        elif isinstance(value, bool):
            yield f"{prefix}{name}", "true" if value else "false"
        elif isinstance(value, list):
            yield f"{prefix}{name}", ",".join(map(str, value))
        else:
            yield f"{prefix}{name}", str(value)


def _line_of(name: str, lines: list[str]) -> int:
    """Returns the number of the line that assigns a setting: the one with the longest suffix of its dotted name."""
    parts = name.split(".")
    for start in range(len(parts)):
        tail = ".".join(parts[start:])
        for number, line in enumerate(lines, 1):
            key, separator, _ = line.partition("=")
            if separator and key.replace(" ", "").replace('"', "").replace("'", "") == tail:
                return number
    return 1
