"""Renders `docs/configuration.md` from the two tables.

python -m ottla.model.config_docs > docs/configuration.md
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ottla.model.broker_config import BROKER_CONFIGS
from ottla.model.config_keys import LONG_MAX, ConfigKey
from ottla.model.topic_config import TOPIC_CONFIGS

_TITLE = """\
# Configuration

Generated from `src/ottla/model` by `python -m ottla.model.config_docs`; do not edit.

Names, units and defaults are Kafka's unless the name begins with `ottla.`. Sizes are in bytes, times in milliseconds.
A topic has its own value, else the broker's (under the name in the last column), else the default.
"""


def render() -> str:
    topic_names = {synonym.name for key in TOPIC_CONFIGS.values() for synonym in key.synonyms}
    broker_keys = [key for key in BROKER_CONFIGS.values() if key.name not in topic_names]
    return "\n".join(
        [
            _TITLE,
            "## Topics",
            "",
            *_rows(TOPIC_CONFIGS.values(), ("broker configuration", _synonyms)),
            "",
            "## Broker",
            "",
            "Only what is marked may be altered while the broker runs; a restart takes the rest.",
            "",
            *_rows(broker_keys, ("alterable", lambda key: "yes" if key.dynamic else "")),
            "",
        ]
    )


def _rows(keys: Iterable[ConfigKey], last: tuple[str, Callable[[ConfigKey], str]]) -> list[str]:
    title, cell = last
    lines = [f"| name | type | default | values | meaning | {title} |", "|---|---|---|---|---|---|"]
    lines += [
        f"| `{key.name}` | {key.type.name.lower()} | {_default(key)} | {key.check or ''} | {key.doc} | {cell(key)} |"
        for key in keys
    ]
    return lines


def _default(key: ConfigKey) -> str:
    if key.default is None:
        return ""
    return "no limit" if key.default == str(LONG_MAX) else key.default


def _synonyms(key: ConfigKey) -> str:
    return ", ".join(f"`{synonym.name}`" for synonym in key.synonyms)


if __name__ == "__main__":
    print(render(), end="")
