"""Pure state machines: events in, decisions out. No clock, no disk, no socket; time comes inside the event."""
