"""Connectors between the log and external systems: databases, files, object stores.

`ottla.connect.contract` defines the interface. Sources and sinks reach a broker only through the Kafka protocol.
"""
