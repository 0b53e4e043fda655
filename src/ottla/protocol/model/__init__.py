"""The vocabulary of the domain: ids, error codes, durability classes, configuration. Pure values, no I/O."""
