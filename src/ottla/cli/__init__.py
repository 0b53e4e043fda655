"""The `ottla` command. Each group of commands has a module, and a command imports what it needs only when it runs."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["main"]

INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command and returns its exit code. Ctrl-C prints no traceback, not even during the first imports."""
    try:
        from ottla.cli.program import main as run

        return run(arguments)
    except KeyboardInterrupt:
        return INTERRUPTED
