"""The real world behind the ports: disk, clock, directory lock, receive buffers, the metadata catalog."""
