"""The controller: what the cluster's state is, and what of it is to be written next. ADR 7."""
