"""The Kafka protocol as bytes: primitives, headers, the hot messages by hand, every other from its schema."""
