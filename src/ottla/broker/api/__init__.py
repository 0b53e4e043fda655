"""The Kafka APIs: one small module each, one explicit list of them, and one entry point for the server."""

from ottla.protocol.model import light_kio as _light_kio  # noqa: F401 - must precede any module that imports kio
