"""Deliberately broken brokers. Each breaks one rule of what keeps acknowledged data; the simulation has to see it."""
