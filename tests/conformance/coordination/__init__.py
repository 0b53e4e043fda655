"""One suite for every coordination store: what `ottla.coordination.port` promises, asked of the real things."""
