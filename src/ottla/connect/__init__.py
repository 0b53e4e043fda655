"""Connectors between the log and what is around it: databases, files, object stores. `ottla.connect.contract` has the
contract; each reaches a broker through the Kafka protocol alone."""
