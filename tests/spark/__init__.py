"""The data pipeline: real Spark in local mode, real brokers."""
