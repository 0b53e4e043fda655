"""Renders `docs/reference/configuration.md` from the tables of topic and broker settings.

python -m ottla.protocol.model.config_docs > docs/reference/configuration.md
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ottla.protocol.model.broker_config import BROKER_CONFIGS
from ottla.protocol.model.config_keys import LONG_MAX, ConfigKey
from ottla.protocol.model.kafka_settings import UNSAFE, WITHOUT_EFFECT
from ottla.protocol.model.topic_config import TOPIC_CONFIGS

_TITLE = """\
# Configuration

Generated from `src/ottla/protocol/model` by `python -m ottla.protocol.model.config_docs`; do not edit.

Names, units and defaults are Kafka's unless the name begins with `ottla.`. Sizes are in bytes, times in milliseconds.
A topic uses its own value if it has one, otherwise the broker's value (under the name in the last column), otherwise
the default.

DescribeConfigs marks the topic settings that begin with `ottla.` as read-only, so MirrorMaker does not copy them to
another cluster: Apache Kafka would reject them, and durability and archive groups belong to one cluster. All of them
except `ottla.durability` can still be altered.
"""


_FOREIGN = """\
## Settings of Kafka that Ottla does not have

A configuration file of Apache Kafka works unchanged if it contains none of the settings that are refused.
`ottla doctor --config FILE` checks a file.

- Settings that promise something that Ottla does not provide, such as access control, are refused: the broker does not
  start. They are accepted if their value matches what Ottla does anyway (`security.inter.broker.protocol=PLAINTEXT`),
  or if it is empty.
- The other settings of Kafka have no effect. The broker starts, and lists them in one line of its log.
- A name that neither Kafka nor Ottla knows has no effect either, as in Kafka. The broker starts, and its log suggests
  the setting that was probably meant. Unknown names that begin with `ottla.` are refused.
- `listeners` may include the listener of a KRaft controller (`controller.listener.names`), which is ignored.
  `broker.id` is another name for `node.id`.
- A client that sets any of these on a running broker receives INVALID_CONFIG.
"""


def render() -> str:
    """Returns the text of the page."""
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
            "Only the settings marked as alterable can be changed while the broker runs; the others require a restart.",
            "",
            *_rows(broker_keys, ("alterable", lambda key: "yes" if key.dynamic else "")),
            "",
            _FOREIGN,
            "| refused | because |",
            "|---|---|",
            *(f"| {_names(unsafe.names, unsafe.prefixes)} | {unsafe.reason} |" for unsafe in UNSAFE),
            "",
            "| without effect | because |",
            "|---|---|",
            *(f"| {_names(group.names, group.prefixes)} | {group.reason} |" for group in WITHOUT_EFFECT),
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


def _names(names: Iterable[str], prefixes: Iterable[str]) -> str:
    return ", ".join([f"`{name}`" for name in names] + [f"`{prefix}*`" for prefix in prefixes])


def _synonyms(key: ConfigKey) -> str:
    return ", ".join(f"`{synonym.name}`" for synonym in key.synonyms)


if __name__ == "__main__":
    print(render(), end="")
