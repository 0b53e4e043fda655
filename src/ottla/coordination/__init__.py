"""What brokers agree on: a small port (`port.py`), and its adapters for SQLite, etcd and ZooKeeper."""
