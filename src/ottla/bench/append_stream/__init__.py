"""The cost of the append stream, compared with the Kafka API, Apache Kafka, a bare gRPC echo and a bare sync."""
