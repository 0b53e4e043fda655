"""The Kafka protocol as bytes: primitives, headers, the hot messages by hand, every other from its schema."""

from ottla.model import light_kio as _light_kio  # noqa: F401 - before any module that imports kio
