"""The Kafka protocol as bytes: primitives, headers, hand-written codecs for the hot messages, generated ones for the
rest."""

from ottla.protocol.model import light_kio as _light_kio  # noqa: F401 - before any module that imports kio
