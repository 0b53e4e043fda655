"""The command `ottla`. One module a group of commands; what a command needs is imported when it runs."""

from ottla.cli.program import main

__all__ = ["main"]
