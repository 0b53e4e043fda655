"""The transactions of this broker, as handlers see them: which ids it coordinates, and a way to ask their coordinators.

asked = await broker.transactions.ask(EndTransaction(transactional_id="t", ...), "t")
                                        a reply of machines/transactions/replies, or Refused
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from ottla.broker.context import BrokerContext
from ottla.broker.coordinators.led_shards import LedShards
from ottla.broker.metadata import Metadata
from ottla.broker.partition.partition import Partition
from ottla.broker.transactions.led_shard import LedShard, TransactionShardContext
from ottla.broker.transactions.marker_sender import MarkerSender
from ottla.broker.transactions.producer_ids import ProducerIds
from ottla.broker.transactions.settings import STATE_TOPIC, state_topic_plan, transaction_config
from ottla.machines.transactions.decisions import Decisions
from ottla.machines.transactions.records import Transaction


class Transactions(LedShards[LedShard]):
    """The transaction coordinators of this broker."""

    def __init__(self, context: BrokerContext, metadata: Metadata, producer_ids: ProducerIds) -> None:
        super().__init__(context, metadata, STATE_TOPIC, state_topic_plan)
        self._producer_ids = producer_ids
        self._markers = MarkerSender(context, metadata)
        self.decisions = Decisions()
        """Decisions since the broker started, over all partitions that it has led. For metrics."""

    def _new_shard(self, partition: Partition) -> LedShard:
        around = TransactionShardContext(
            self._clock,
            transaction_config(self._context.config),
            self._loading,
            self._markers,
            self._producer_ids.allocate,
            self.decisions,
        )
        return LedShard(partition, around, self._on_ended)

    def stop(self) -> None:
        super().stop()
        self._markers.stop()

    def state_counts(self) -> Mapping[str, int]:
        """Returns the number of transactional ids in each state, in the partitions led here. For metrics."""
        counts: Counter[str] = Counter()
        for shard in self._serving():
            counts.update(transaction.state.label for transaction in shard.machine.tables.values())
        return counts

    def known(self) -> Iterator[Transaction]:
        """Iterates over the transactions of the partitions led here. The caller may yield to the event loop in between.
        For metrics."""
        for shard in list(self._serving()):
            yield from list(shard.machine.tables.values())
