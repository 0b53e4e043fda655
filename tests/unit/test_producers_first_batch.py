"""The first batch of a producer in a partition is refused, and the second is on its way already."""

from __future__ import annotations

import pytest

from ottla.model.errors import ErrorCode
from tests.unit.sim_broker import BrokerBench


@pytest.mark.xfail(
    strict=True,
    reason="a producer that a log has never heard of may begin anywhere, as with Kafka, because its batches may have "
    "been removed. If its first batch was refused (too few replicas) and its second is taken, librdkafka takes the "
    "first for acknowledged too",
)
async def test_the_second_batch_is_not_taken_before_the_first() -> None:
    bench = BrokerBench()
    await bench.create("orders")
    assert await bench.produce("orders", producer=(7, 0, 1)) is ErrorCode.out_of_order_sequence_number
    assert await bench.produce("orders", producer=(7, 0, 0)) == 0
    assert await bench.produce("orders", producer=(7, 0, 1)) == 1
