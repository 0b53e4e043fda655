"""Pure state machines: events in, decisions out. They use no clock, disk or socket; each event carries the time."""
