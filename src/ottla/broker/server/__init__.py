"""The network server: reads frames, writes replies in order, enforces limits and back-pressure, and shuts down
cleanly."""
