"""One test suite for every coordination store: the contract of `ottla.coordination.port` on real stores."""
