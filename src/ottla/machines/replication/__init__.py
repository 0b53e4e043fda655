"""Replication of one partition, as its leader sees it: who is in sync, and how far everybody in sync has got."""

from ottla.machines.replication.leader import Follower, LeaderReplication
from ottla.machines.replication.throttle import Throttle

__all__ = ["Follower", "LeaderReplication", "Throttle"]
