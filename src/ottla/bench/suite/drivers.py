"""The drivers, as module-level functions that are called in separate processes."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable
from importlib import import_module
from importlib.util import find_spec
from typing import NamedTuple

from ottla.bench.suite import java_tools, librdkafka_consumer, librdkafka_producer, ottla_consumer, ottla_producer
from ottla.bench.suite.loads import ConsumerLoad, ConsumerResult, ProducerLoad, ProducerResult


class Driver(NamedTuple):
    """The functions and requirements of a driver."""

    produce: Callable[[ProducerLoad], ProducerResult]
    consume: Callable[[ConsumerLoad], ConsumerResult]
    needs_jars: bool = False
    package: str = ""
    """The package to import, besides Ottla's own dependencies."""
    extra: str = ""
    """The extra of Ottla that installs the package."""


DRIVERS = {
    "librdkafka": Driver(
        librdkafka_producer.produce, librdkafka_consumer.consume, package="confluent_kafka", extra="bench"
    ),
    "java": Driver(java_tools.produce, java_tools.consume, needs_jars=True),
    "ottla": Driver(ottla_producer.produce, ottla_consumer.consume),
    "ottla-arrow": Driver(ottla_producer.produce, ottla_consumer.consume, package="pyarrow", extra="arrow"),
}


def missing_for(names: Iterable[str]) -> str | None:
    """Returns a sentence that says what to install for these drivers, or None if nothing is missing."""
    for name in names:
        driver = DRIVERS[name]
        if driver.package and find_spec(driver.package) is None:
            return f"the driver {name} needs the package {driver.package}: pip install 'ottla[{driver.extra}]'"
    return None


def get_ready(name: str) -> None:
    """Imports the driver's package and disables garbage collection, so that neither disturbs the measurement later.

    Each process calls it first. It lives only for seconds.
    """
    gc.disable()
    if package := DRIVERS[name].package:
        import_module(package)
