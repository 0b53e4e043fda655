"""The Kafka APIs: one small module each, one explicit list of them, and one way in from the server."""

from ottla.model import light_kio as _light_kio  # noqa: F401 - before any module that imports kio
