"""Decides what to do with a broker setting that Ottla does not have: reject it, or start and report it.

Names that neither Kafka nor Ottla knows are reported, as in Kafka. Three kinds of them are rejected nevertheless: names
that begin with `ottla.`, which no other program uses; names under a prefix that stands for security; and misspelled
names of settings that are rejected.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches

from ottla.protocol.model.access_keys import ACCESS_KEYS
from ottla.protocol.model.config_keys import ConfigKey, unknown_name
from ottla.protocol.model.errors import ErrorCode, Refused
from ottla.protocol.model.kafka_settings import (
    OF_THE_PROCESS,
    UNSAFE,
    WITHOUT_EFFECT,
    IneffectiveSettings,
    UnsafeSettings,
)
from ottla.protocol.model.security_keys import LISTENER_PREFIX, listener_key

OWN_PREFIX = "ottla."
SURELY_MEANT = 0.9
"""An unknown name that is at least this similar to the name of a rejected setting counts as its misspelling."""

_UNSAFE_NAMES = {name: group for group in (*UNSAFE, OF_THE_PROCESS) for name in group.names}
_SECURITY_NAMES = [key.name for key in ACCESS_KEYS]
"""Settings without which a broker is open. It does not start with a name that is surely a misspelling of one."""
_NAMES_WITHOUT_EFFECT = {name: group for group in WITHOUT_EFFECT for name in group.names}
_OF_A_LISTENER = IneffectiveSettings("this setting cannot differ between listeners", ())


def refusal(name: str, value: str, known: Mapping[str, ConfigKey]) -> Refused | None:
    """Returns why a broker must not start with this setting; None if it may."""
    group = _unsafe(name)
    if group is not None and not _is_harmless(group, name, value):
        return _refused(name, group)
    if group is not None or without_effect(name) is not None:
        return None
    if name.startswith(OWN_PREFIX):
        return unknown_name("broker", name, known)
    if get_close_matches(name, _SECURITY_NAMES, n=1, cutoff=SURELY_MEANT):
        return unknown_name("broker", name, known)
    meant = get_close_matches(name, _UNSAFE_NAMES, n=1, cutoff=SURELY_MEANT)
    if meant:
        refused = _refused(meant[0], _UNSAFE_NAMES[meant[0]])
        return refused._replace(
            message=f"Unknown broker config name: {name}. Did you mean {meant[0]}? {refused.message}"
        )
    return None


def without_effect(name: str) -> IneffectiveSettings | None:
    """Returns the group of a known setting that only Kafka has, or None."""
    found = _NAMES_WITHOUT_EFFECT.get(name)
    if found is None and name.startswith(LISTENER_PREFIX):
        return _OF_A_LISTENER
    return found or next((group for group in WITHOUT_EFFECT if name.startswith(group.prefixes)), None)


def notices(names: Iterable[str], known: Mapping[str, ConfigKey]) -> tuple[str, ...]:
    """Returns messages for the operator: one for all of Kafka's settings, and one for each unknown name."""
    by_reason: dict[str, list[str]] = {}
    unknown: list[str] = []
    for name in sorted(names):
        group = without_effect(name)
        if is_unknown(name, known):
            unknown.append(name)
        elif group is not None and _unsafe(name) is None:  # otherwise it has the value that matches what Ottla does
            by_reason.setdefault(group.reason, []).append(name)
    parts = [f"{', '.join(names)} ({reason})" for reason, names in by_reason.items()]
    lines = ["these settings of Kafka have no effect in Ottla: " + "; ".join(parts)] if parts else []
    return tuple(lines + [_unknown(name, known) for name in unknown])


def is_unknown(name: str, known: Mapping[str, ConfigKey]) -> bool:
    """Reports whether neither Kafka nor Ottla knows the name."""
    is_own = name in known or listener_key(name) is not None
    return not is_own and without_effect(name) is None and _unsafe(name) is None


def why_not_dynamic(name: str, known: Mapping[str, ConfigKey]) -> Refused:
    """Returns the reply to a client that sets, on a running broker, a name that Ottla does not have."""
    group = _unsafe(name)
    if group is not None:
        return _refused(name, group)
    return unknown_name("broker", name, known)


def _unknown(name: str, known: Mapping[str, ConfigKey]) -> str:
    meant = get_close_matches(name, [*known, *_NAMES_WITHOUT_EFFECT, *_UNSAFE_NAMES], n=1)
    line = f"the setting {name} is not known to Ottla or Kafka and has no effect"
    return f"{line}: did you mean {meant[0]}?" if meant else line


def _unsafe(name: str) -> UnsafeSettings | None:
    if name in _NAMES_WITHOUT_EFFECT:
        return None
    if name.startswith(LISTENER_PREFIX):
        _, _, name = name.removeprefix(LISTENER_PREFIX).partition(".")
        for prefix in (".sasl.", ".ssl."):  # a mechanism may precede it: scram-sha-512.sasl.jaas.config
            if prefix in f".{name}":
                name = prefix[1:] + name.rpartition(prefix[1:])[2]
    found = _UNSAFE_NAMES.get(name)
    return found or next((group for group in UNSAFE if name.startswith(group.prefixes)), None)


def _is_harmless(group: UnsafeSettings, name: str, value: str) -> bool:
    text = value.replace(" ", "")
    return not text or (name, text.lower()) in {(each, harmless.lower()) for each, harmless in group.harmless}


def _refused(name: str, group: UnsafeSettings) -> Refused:
    return Refused(ErrorCode.invalid_config, f"{name} is not supported: {group.reason}.")
