"""What `make demo` shows: three brokers, a million records, the leader killed in mid-stream, and nothing lost."""
