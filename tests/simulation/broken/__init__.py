"""Deliberately broken brokers. Each violates one rule that protects acknowledged data; the simulation must detect
it."""
