"""Offered load above capacity: how much a cluster acknowledges, and how long other clients wait meanwhile."""
