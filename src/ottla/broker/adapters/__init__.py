"""Production implementations of the ports: disk, clock, directory lock, receive buffers, the metadata catalog."""
