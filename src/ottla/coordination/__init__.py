"""Coordination between brokers: a small port (`port.py`), and its adapters for SQLite, etcd and ZooKeeper."""
