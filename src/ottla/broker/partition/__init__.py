"""One partition on a broker: admission, validation, waits, fetch sessions and back-pressure."""
