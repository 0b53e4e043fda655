"""`ottla produce`, `consume` and `dlq`: records from the command line."""
