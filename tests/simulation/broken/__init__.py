"""Deliberately broken brokers. Each violates one rule that protects acknowledged data; a simulation detects it."""
