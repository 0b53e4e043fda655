"""Which driver does what: functions of modules, called in processes of their own."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable
from importlib import import_module
from importlib.util import find_spec
from typing import NamedTuple

from ottla.bench.suite import java_tools, librdkafka_consumer, librdkafka_producer, ottla_consumer, ottla_producer
from ottla.bench.suite.loads import Consumed, ConsumerLoad, Produced, ProducerLoad


class Driver(NamedTuple):
    produce: Callable[[ProducerLoad], Produced]
    consume: Callable[[ConsumerLoad], Consumed]
    needs_jars: bool = False
    package: str = ""
    """To be imported, beside what Ottla needs anyway."""
    extra: str = ""
    """Of Ottla's, which brings that package."""


DRIVERS = {
    "librdkafka": Driver(
        librdkafka_producer.produce, librdkafka_consumer.consume, package="confluent_kafka", extra="bench"
    ),
    "java": Driver(java_tools.produce, java_tools.consume, needs_jars=True),
    "ottla": Driver(ottla_producer.produce, ottla_consumer.consume),
    "ottla-arrow": Driver(ottla_producer.produce, ottla_consumer.consume, package="pyarrow", extra="arrow"),
}


def missing_for(names: Iterable[str]) -> str | None:
    """What has to be installed for these drivers: a sentence."""
    for name in names:
        driver = DRIVERS[name]
        if driver.package and find_spec(driver.package) is None:
            return f"the driver {name} needs {driver.package}: pip install 'ottla[{driver.extra}]'"
    return None


def get_ready(name: str) -> None:
    """Called first in each process, so that neither imports nor garbage are in the way later: it lives for seconds."""
    gc.disable()
    if package := DRIVERS[name].package:
        import_module(package)
