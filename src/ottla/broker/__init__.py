"""One broker process: listeners, APIs, partitions, storage, replication, coordinators and metrics."""
