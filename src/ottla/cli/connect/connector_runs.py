"""Runs connectors for `ottla connect` under supervision, and turns their failures into error messages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import typer

from ottla.cli.failures import FAILURE, CommandError
from ottla.cli.output import run, say

if TYPE_CHECKING:
    from ottla.connect.configuration import ConnectorConfig


@contextmanager
def failures_in_words() -> Iterator[None]:
    """Turns expected failures into FailedError."""
    try:
        from ottla.connect.failures import ConnectorError

        yield
    except ConnectorError as failure:
        raise CommandError(str(failure)) from failure
    except ImportError as missing:
        raise CommandError(
            f"connectors need additional packages: pip install 'ottla[connect]' ({missing})"
        ) from missing


def run_connectors(configs: Sequence[ConnectorConfig]) -> None:
    """Runs connectors until Ctrl-C or until all have ended. The exit code is 1 if one has failed."""
    with failures_in_words():
        from ottla.connect.supervisor import supervise

        for config in configs:
            config.check()
        ended = run(supervise(configs, say))
    if any(status.state == "failed" for status in ended):
        raise typer.Exit(FAILURE)


def run_connector(name: str, kind: str, bootstrap: str, settings: Mapping[str, object]) -> None:
    """Runs a single connector, as `run_connectors` does."""
    with failures_in_words():
        from ottla.connect.configuration import ConnectorConfig

        config = ConnectorConfig(name, kind, bootstrap, settings)
    run_connectors([config])
