"""The data pipeline with real Spark in local mode and real brokers."""
