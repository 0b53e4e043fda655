"""The group settings of a consumer, validated once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from ottla.client.groups.assignors import ASSIGNORS, COOPERATIVE_STICKY, RANGE

GroupProtocol = Literal["classic", "consumer"]
PROTOCOLS = ("classic", "consumer")
DEFAULT_ASSIGNORS = (RANGE, COOPERATIVE_STICKY)
"""The defaults of Kafka's own client, so that both find a common assignor."""


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """The settings that a `Consumer` passes to its group."""

    group_id: str
    instance_id: str | None = None
    protocol: str = "classic"
    assignors: Sequence[str] = DEFAULT_ASSIGNORS
    """Classic protocol: the supported assignors. The group votes for one that all members support."""
    remote_assignor: str | None = None
    """Consumer protocol: the coordinator's assignor; None leaves the choice to the coordinator."""
    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 3_000
    max_poll_interval_ms: int = 300_000
    auto_commit: bool = True
    auto_commit_interval_ms: int = 5_000
    rack: str = ""

    def __post_init__(self) -> None:
        if not self.group_id:
            raise ValueError("group_id is empty")
        if self.instance_id == "":
            raise ValueError("group_instance_id is empty; use None for a dynamic member")
        if self.protocol not in PROTOCOLS:
            raise ValueError(f"group_protocol must be one of {', '.join(PROTOCOLS)}, not {self.protocol!r}")
        if isinstance(self.assignors, str) or not self.assignors:
            raise ValueError(f"assignors must be a list of some of {', '.join(ASSIGNORS)}")
        for name in self.assignors:
            if name not in ASSIGNORS:
                raise ValueError(f"assignors must be some of {', '.join(ASSIGNORS)}, not {name!r}")
        if not 0 < self.heartbeat_interval_ms < self.session_timeout_ms:
            raise ValueError("heartbeat_interval_ms must be at least 1 and less than session_timeout_ms")
        if self.max_poll_interval_ms < 1 or self.auto_commit_interval_ms < 1:
            raise ValueError("max_poll_interval_ms and auto_commit_interval_ms must be at least 1")

    @property
    def cooperative(self) -> bool:
        """Whether this member keeps its partitions while it joins, which requires only cooperative assignors."""
        return all(name == COOPERATIVE_STICKY for name in self.assignors)

    @property
    def heartbeat_interval_s(self) -> float:
        """The heartbeat interval in seconds."""
        return self.heartbeat_interval_ms / 1000

    @property
    def max_poll_interval_s(self) -> float:
        """The poll interval in seconds."""
        return self.max_poll_interval_ms / 1000
