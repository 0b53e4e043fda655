"""The kinds of connectors, and their description in a TOML file or on a command line.

bootstrap = "127.0.0.1:9092"

[connector.shop]
kind = "postgres-cdc"
url = "postgresql://ottla@db/shop"        # or url_variable = "SHOP_URL", and the address in the environment
tables = ["orders", "customers"]
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

from ottla.connect.contract import Follower, Sink, Source
from ottla.connect.failures import NeedsHelpError

KINDS = {
    "postgres-cdc": "ottla.connect.postgres.cdc_settings",
    "postgres-sink": "ottla.connect.postgres.sink_settings",
    "file-sink": "ottla.connect.files.sink_settings",
    "postgres-wal": "ottla.connect.postgres_wal.connector",
    "sqlite": "ottla.connect.sqlite.connector",
}
"""The module of each kind. It defines `REQUIRED` and `OPTIONAL` settings and `build(name, settings, bootstrap)`."""
FOLLOWERS = {"postgres-wal": "postgres,wal", "sqlite": "wal"}
"""Kinds that write their log through its append stream, with the extras that they need installed. They use `bootstrap`
only to report their status."""
NAME = re.compile(r"[a-zA-Z0-9._-]{1,80}")
DEFAULT_BOOTSTRAP = "127.0.0.1:9092"
DEFAULT_WAL = "127.0.0.1:9192"


@dataclass(frozen=True, slots=True)
class ConnectorConfig:
    """The name, kind and settings of one connector."""

    name: str
    kind: str
    bootstrap: str
    settings: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Returns the form in which the supervisor passes the connector to its worker process."""
        return {"name": self.name, "kind": self.kind, "bootstrap": self.bootstrap, "settings": dict(self.settings)}

    def check(self) -> None:
        """Raises NeedsHelpError if the name is invalid, or a setting is missing or unknown."""
        if not NAME.fullmatch(self.name):
            raise NeedsHelpError(f'"{self.name}" is not a valid connector name: use letters, digits, ".", "_" and "-"')
        if self.kind not in KINDS:
            raise NeedsHelpError(f'{self.name}: there is no connector "{self.kind}"; there are {", ".join(KINDS)}')
        module = _module(self.kind)
        known = {*module.REQUIRED, *module.OPTIONAL}
        for unknown in self.settings.keys() - known:
            raise NeedsHelpError(
                f'{self.name}: {self.kind} has no setting "{unknown}"; it has {", ".join(sorted(known))}'
            )
        for missing in (each for each in module.REQUIRED if not self.settings.get(each)):
            raise NeedsHelpError(f'{self.name}: {self.kind} needs the setting "{missing}"')

    @property
    def needs_bootstrap(self) -> bool:
        """Whether the connector cannot run without Kafka brokers."""
        return self.kind not in FOLLOWERS

    def build(self) -> Source | Sink | Follower:
        """Checks the configuration and creates the connector."""
        self.check()
        build: Callable[[str, Mapping[str, Any], str], Source | Sink | Follower] = _module(self.kind).build
        return build(self.name, self.settings, self.bootstrap)


def _module(kind: str) -> Any:
    try:
        return import_module(KINDS[kind])
    except ImportError as missing:
        extra = FOLLOWERS.get(kind, "connect")
        raise NeedsHelpError(f"{kind} needs additional packages: pip install 'ottla[{extra}]' ({missing})") from missing


def load_file(path: Path, bootstrap: str | None = None) -> list[ConnectorConfig]:
    """Returns the connectors of a TOML file. Raises NeedsHelpError if the file is invalid."""
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as failure:
        raise NeedsHelpError(f"{path}: {failure.strerror}") from failure
    except tomllib.TOMLDecodeError as mistake:
        raise NeedsHelpError(f"{path} is not valid TOML: {mistake}") from mistake
    for unknown in content.keys() - {"bootstrap", "connector"}:
        raise NeedsHelpError(
            f'{path}: unknown setting "{unknown}"; the file may contain bootstrap and [connector.NAME]'
        )
    described = content.get("connector")
    if not isinstance(described, dict) or not described:
        raise NeedsHelpError(f"{path} has no connector; add [connector.NAME] with kind = ... below it")
    chosen = bootstrap or content.get("bootstrap", DEFAULT_BOOTSTRAP)
    configs = [_config(name, table, chosen) for name, table in described.items()]
    for config in configs:
        config.check()
    return configs


def _config(name: str, table: Any, bootstrap: str) -> ConnectorConfig:
    if not isinstance(table, dict) or not isinstance(table.get("kind"), str):
        raise NeedsHelpError(f"[connector.{name}] has no kind; choose one of {', '.join(KINDS)}")
    settings = {key: value for key, value in table.items() if key not in ("kind", "url_variable")}
    variable = table.get("url_variable")
    if variable is not None:
        if variable not in os.environ:
            raise NeedsHelpError(
                f"[connector.{name}]: the environment variable {variable} is not set: export {variable}=..."
            )
        settings["url"] = os.environ[variable]
    return ConnectorConfig(name, table["kind"], bootstrap, settings)
