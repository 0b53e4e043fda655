"""Topics as a Spark sink, exactly once."""
