"""`ottla sql`."""
