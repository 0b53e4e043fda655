"""Determines whose data is in the directory given to `ottla up`, and hence how many brokers to run.

    DATA/FORMAT, ...           a standalone broker
    DATA/broker-1/FORMAT, ...  a cluster on one machine, with DATA/coordination as its coordination store

Existing data is never left behind: `ottla up` either starts the brokers that own it or refuses to start.
"""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import TYPE_CHECKING

from ottla.cli.failures import CommandError

if TYPE_CHECKING:
    from ottla.broker.app import BrokerSettings

FORMAT_FILE = "FORMAT"
OF_ONE_BROKER = ("node.id", "ottla.coordination")
"""Settings that belong to one broker of a cluster: a file that has them cannot configure several brokers."""
_BROKER = re.compile(r"broker-([1-9][0-9]*)")

log = logging.getLogger("ottla.up")


def broker_directory(data: Path, number: int) -> Path:
    """Returns the data directory of a broker of a local cluster."""
    return data / f"broker-{number}"


def broker_file(data: Path, number: int) -> Path:
    """Returns the configuration file of a broker of a local cluster."""
    return data / f"broker-{number}.properties"


def coordination_directory(data: Path) -> Path:
    """Returns the directory of a local cluster's coordination store."""
    return data / "coordination"


def brokers_to_run(settings: BrokerSettings, asked: int | None, default: int, config: Path | None) -> int:
    """Returns how many brokers to run. Raises FailedError if the number asked for does not match the existing data."""
    data = Path(settings.data_dir)
    is_of_one = [name for name in OF_ONE_BROKER if name in settings.properties]
    if is_of_one:
        if asked is not None and asked > 1:
            raise CommandError(
                f"{config} sets {is_of_one[0]}, so it configures a single broker of a cluster; start it with "
                f"`ottla broker --config {config}`, or remove that setting for `--brokers {asked}`"
            )
        return 1
    if (data / FORMAT_FILE).exists():
        return _one(data, asked)
    there = _highest_broker(data)
    if there:
        return _many(data, asked, there)
    return default if asked is None else asked


def _one(data: Path, asked: int | None) -> int:
    if asked is not None and asked > 1:
        raise CommandError(
            f"{data} has the data of a standalone broker, which a cluster of {asked} would not use; continue "
            "with `--brokers 1`, or choose another directory with --data"
        )
    if asked is None:
        log.warning(
            "%s has the data of a standalone broker, which continues standalone. For a cluster, choose "
            "another directory with --data",
            data,
        )
    return 1


def _many(data: Path, asked: int | None, there: int) -> int:
    if asked is not None and asked < there:
        raise CommandError(
            f"{data} has the data of {there} brokers, which fewer brokers would not use completely; start with "
            f"`--brokers {there}`, or choose another directory with --data"
        )
    return asked or there


def _highest_broker(data: Path) -> int:
    """Returns the highest number of a broker with data here, or 0 if there is none."""
    try:
        names = [path.name for path in data.iterdir()]
    except OSError:  # missing or not readable: the caller reports it when it uses the directory
        return 0
    numbers = [int(found[1]) for name in names if (found := _BROKER.fullmatch(name)) is not None]
    return max((number for number in numbers if (broker_directory(data, number) / FORMAT_FILE).exists()), default=0)
