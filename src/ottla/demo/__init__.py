"""What `make demo` shows: three brokers, a million records, the leader killed in mid-stream, and nothing lost; then a
table, restored to the moment before a bad delete."""
