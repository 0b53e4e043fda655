"""Coordination through ZooKeeper, where it is already running. Needs the extra `zookeeper`."""

from ottla.coordination.zookeeper.adapter import ZookeeperCoordination

__all__ = ["ZookeeperCoordination"]
