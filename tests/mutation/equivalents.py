"""The reviewed list of equivalent mutants: those that change nothing that a user or another part can observe."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from pathlib import Path

from tests.mutation.mutants import Identity

LIST = Path(__file__).with_name("equivalent.toml")
KEYS = ("module", "operator", "function", "source", "becomes")


class BadListError(Exception):
    """An entry of the list is not complete."""


def read(path: Path = LIST) -> Mapping[Identity, str]:
    """Returns the reason for each equivalent mutant."""
    reasons: dict[Identity, str] = {}
    for entry in tomllib.loads(path.read_text(encoding="utf-8")).get("equivalent", []):
        missing = [key for key in (*KEYS, "reason") if not isinstance(entry.get(key), str)]
        if missing or not entry["reason"].strip():
            raise BadListError(f"{path.name}: an entry lacks {', '.join(missing) or 'its reason'}: {entry}")
        reasons[Identity(*(entry[key].strip("\n") for key in KEYS))] = entry["reason"]
    return reasons


def entry(identity: Identity) -> str:
    """Returns the lines for the list, without the reason, which a person writes."""
    values = zip(KEYS, identity, strict=True)
    lines = [f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in values]
    return "\n".join(["[[equivalent]]", *lines, 'reason = ""'])
