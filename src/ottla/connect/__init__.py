"""Databases on the log: what they write is captured into it, and restored from it.

Everything here reaches a broker through the Kafka protocol or gRPC alone.
"""
