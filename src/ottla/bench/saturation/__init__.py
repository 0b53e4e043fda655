"""Measures how much an overloaded cluster acknowledges, and how long other clients wait meanwhile."""
