"""Coordination through etcd, for brokers on several machines. Needs the extra `etcd`."""

from ottla.coordination.etcd.adapter import EtcdCoordination

__all__ = ["EtcdCoordination"]
