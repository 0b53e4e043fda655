"""Coordination through ZooKeeper, where there is one already. Needs the extra `zookeeper`."""

from ottla.coordination.zookeeper.adapter import ZookeeperCoordination

__all__ = ["ZookeeperCoordination"]
