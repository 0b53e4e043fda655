"""Which driver does what: functions of modules, called in processes of their own."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from ottla.bench.suite import java_tools, librdkafka_consumer, librdkafka_producer, ottla_consumer, ottla_producer
from ottla.bench.suite.loads import Consumed, ConsumerLoad, Produced, ProducerLoad


class Driver(NamedTuple):
    produce: Callable[[ProducerLoad], Produced]
    consume: Callable[[ConsumerLoad], Consumed]
    needs_jars: bool = False


DRIVERS = {
    "librdkafka": Driver(librdkafka_producer.produce, librdkafka_consumer.consume),
    "java": Driver(java_tools.produce, java_tools.consume, needs_jars=True),
    "ottla": Driver(ottla_producer.produce, ottla_consumer.consume),
    "ottla-arrow": Driver(ottla_producer.produce, ottla_consumer.consume),
}


def get_ready() -> None:
    """Called first in each process, so that neither imports nor garbage are in the way later: it lives for seconds."""
    import gc

    gc.disable()
    import confluent_kafka  # noqa: F401 # loads its library
