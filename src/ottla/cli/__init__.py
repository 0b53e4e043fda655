"""The command `ottla`. One module a group of commands; what a command needs is imported when it runs."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["main"]

INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command; the exit code. Ctrl-C is quiet from the first import on."""
    try:
        from ottla.cli.program import main as run

        return run(arguments)
    except KeyboardInterrupt:
        return INTERRUPTED
