"""Membership in consumer groups, for both of Kafka's group protocols."""
