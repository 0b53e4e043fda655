"""Security of a broker: who a client is and what it may do."""
