"""The security of the commands that connect to brokers: `ottla --config FILE`, or environment variables.

Passwords are never options, because every user of a machine can read the command lines of its processes.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from ottla.cli.failures import CommandError
from ottla.net.client_properties import PASSWORD, USERNAME, BadClientPropertiesError, security_from
from ottla.net.security import ConnectionSecurity

FILE_VARIABLE = "OTTLA_CONFIG"
VARIABLES = {"OTTLA_SASL_USERNAME": USERNAME, "OTTLA_SASL_PASSWORD": PASSWORD}


def choose_file(path: Path) -> None:
    """Uses a file of client properties for all connections of this command and of its children."""
    os.environ[FILE_VARIABLE] = str(path)


@cache
def client_security() -> ConnectionSecurity:
    """Returns the security of this command's connections. Raises CommandError if the file cannot be used."""
    path = os.environ.get(FILE_VARIABLE)
    properties = {} if not path else _read(Path(path))
    properties |= {name: os.environ[variable] for variable, name in VARIABLES.items() if variable in os.environ}
    try:
        return security_from(properties)
    except BadClientPropertiesError as failure:
        raise CommandError(f"{path or 'the environment'}: {failure}") from failure


def _read(path: Path) -> dict[str, str]:
    from ottla.cli.up.config_file import read_settings

    settings: Mapping[str, str] = {each.name: each.value for each in read_settings(path)}
    return dict(settings)
