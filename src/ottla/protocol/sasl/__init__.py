"""SASL: the messages and calculations of its mechanisms, and the client's side of them."""
