"""Connections that brokers and clients share: Kafka's protocol, and gRPC in `grpc`."""
