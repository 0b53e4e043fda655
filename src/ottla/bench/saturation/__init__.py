"""Offered load above capacity: what a cluster acknowledges, and how long other clients wait meanwhile."""
