"""What the append stream costs, beside the Kafka API, Apache Kafka, a bare gRPC echo and a bare sync."""
