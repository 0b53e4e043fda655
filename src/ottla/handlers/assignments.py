"""Manual replica assignments, as CreateTopics and CreatePartitions carry them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ottla.model.errors import ErrorCode, Refused

if TYPE_CHECKING:
    from ottla.broker.broker import Broker


def check_assignment(broker: Broker, broker_ids: Sequence[int]) -> Refused | None:
    """One partition's replicas: at least one, none twice, all of them alive."""
    if not broker_ids:
        return _refused("an assignment names no broker")
    if len(set(broker_ids)) != len(broker_ids):
        return _refused(f"an assignment names a broker twice: {list(broker_ids)}")
    unknown = [broker_id for broker_id in broker_ids if broker_id != broker.node_id]
    if unknown:
        return _refused(f"broker(s) {unknown} are not registered")
    return None


def _refused(reason: str) -> Refused:
    return Refused(ErrorCode.invalid_replica_assignment, f"Invalid replica assignment: {reason}.")
