"""The two replication throttles of a broker: on the data it sends as a leader, and on the data it fetches as a
follower.

As in Kafka, a topic lists the throttled replicas and a broker has the rates. Only replicas that are not in sync are
throttled, so no acknowledgement ever waits for a throttle. Unlike in Kafka, the traffic of listed replicas that are in
sync does not consume the rate either.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.machines.replication import Throttle

if TYPE_CHECKING:
    from ottla.broker.partition.partition import Partition
    from ottla.ports import Clock
    from ottla.protocol.model.broker_config import BrokerConfig

ALL_REPLICAS = "*"


class ReplicationThrottles:
    """Applies both throttles of a broker."""

    def __init__(self, clock: Clock, config: BrokerConfig) -> None:
        self._clock = clock
        self._node_id = config.node_id
        self._leader = Throttle()
        self._follower = Throttle()
        self.use_rates(config)

    def use_rates(self, config: BrokerConfig) -> None:
        """Takes the rates from the configuration."""
        now_ms = self._clock.monotonic_ms()
        self._leader.set_rate(config.leader_replication_throttled_rate, now_ms)
        self._follower.set_rate(config.follower_replication_throttled_rate, now_ms)

    # -- as a leader --------------------------------------------------------------------------------------------------

    def is_leader_throttled(self, partition: Partition, replica_id: int) -> bool:
        """Whether a follower's reads from this partition are throttled. A follower counts as in sync as soon as its ISR
        expansion is proposed, because the high watermark waits for it from then on."""
        listed = partition.topic.config.leader_replication_throttled_replicas
        leading = partition.leading
        if not listed or leading is None or not self._leader.is_limited:
            return False
        is_in_sync = replica_id in leading.isr or replica_id in (leading.proposed or ())
        return not is_in_sync and self._is_listed(listed, partition.index)

    def leader_allowance(self, pending: int) -> int:
        """Returns the bytes that may be sent now to throttled followers, beyond `pending` bytes not counted yet; 0 if
        it has to wait."""
        return self._leader.allowance(self._clock.monotonic_ms(), pending)

    def on_sent(self, partition: Partition, replica_id: int, size_bytes: int) -> None:
        """Counts records sent to a follower, if they are throttled."""
        if self.is_leader_throttled(partition, replica_id):
            self._leader.record(size_bytes, self._clock.monotonic_ms())

    # -- as a follower ------------------------------------------------------------------------------------------------

    def is_follower_throttled(self, partition: Partition) -> bool:
        """Whether this broker's fetches for the partition are throttled."""
        listed = partition.topic.config.follower_replication_throttled_replicas
        if not listed or not self._follower.is_limited or self._node_id in partition.placement.isr:
            return False
        return self._is_listed(listed, partition.index)

    def follower_allowance(self) -> int:
        """Returns the bytes that may be fetched now for throttled partitions; 0 if it has to wait."""
        return self._follower.allowance(self._clock.monotonic_ms())

    def follower_wait_ms(self) -> float:
        """Returns the time until `follower_allowance` is not 0."""
        return self._follower.wait_ms(self._clock.monotonic_ms())

    def on_fetched(self, size_bytes: int) -> None:
        """Counts throttled records that this broker fetched."""
        self._follower.record(size_bytes, self._clock.monotonic_ms())

    def _is_listed(self, listed: frozenset[str], index: int) -> bool:
        return ALL_REPLICAS in listed or f"{index}:{self._node_id}" in listed
