"""The words of the domain: ids, error codes, durability classes, configuration. Pure values, no behaviour of I/O."""
