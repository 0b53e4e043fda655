"""The Kafka APIs: one small module each, one explicit list of them, and one way in from the server."""
