"""Parses one entry of a JAAS configuration, the form in which Kafka's settings hold names and passwords.

org.apache.kafka.common.security.plain.PlainLoginModule required username="broker" password="..." user_alice="...";
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

_FLAGS = ("required", "requisite", "sufficient", "optional")
_HEAD = re.compile(r"\s*([\w.$]+)\s+(\w+)\s*")
_OPTION = re.compile(r'\s*([\w.$-]+)\s*=\s*(?:"((?:\\.|[^"\\])*)"|\'((?:\\.|[^\'\\])*)\'|([^\s;"\']+))\s*')
_USER_PREFIX = "user_"
_EXPECTED = 'write MODULE required NAME="VALUE" ...;'


class JaasEntry(NamedTuple):
    """The login module and its options."""

    module: str
    options: Mapping[str, str]

    @property
    def login(self) -> tuple[str, str] | None:
        """The name and password with which this side authenticates itself."""
        name, password = self.options.get("username"), self.options.get("password")
        return None if name is None or password is None else (name, password)

    @property
    def users(self) -> dict[str, str]:
        """The users that a server accepts, with their passwords: the options user_NAME."""
        found = self.options.items()
        return {name.removeprefix(_USER_PREFIX): password for name, password in found if name.startswith(_USER_PREFIX)}


def parse_jaas(text: str) -> JaasEntry:
    """Parses an entry. Raises ValueError; the message does not contain any part of the text."""
    head = _HEAD.match(text)
    if head is None or head.group(2).lower() not in _FLAGS:
        raise ValueError(f"it does not begin with a login module and `required`; {_EXPECTED}")
    options: dict[str, str] = {}
    at = head.end()
    while at < len(text) and text[at] != ";":
        option = _OPTION.match(text, at)
        if option is None:
            raise ValueError(f"its option number {len(options) + 1} is not NAME=VALUE; {_EXPECTED}")
        name, double, single, bare = option.groups()
        quoted = double if double is not None else single
        options[name] = bare if quoted is None else re.sub(r"\\(.)", r"\1", quoted)
        at = option.end()
    if at >= len(text):
        raise ValueError(f"the semicolon at the end is missing; {_EXPECTED}")
    if text[at + 1 :].strip():
        raise ValueError("it has more than one entry")
    return JaasEntry(head.group(1), options)
