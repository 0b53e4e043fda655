"""Replication of one partition as its leader sees it: which followers are in sync, and how far they have all got."""

from ottla.machines.replication.leader import Follower, LeaderReplication
from ottla.machines.replication.throttle import Throttle

__all__ = ["Follower", "LeaderReplication", "Throttle"]
