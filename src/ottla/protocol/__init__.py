"""Kafka's bytes, without I/O: wire formats, record batches and the values that both sides share."""
