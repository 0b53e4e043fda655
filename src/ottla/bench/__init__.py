"""Benchmarks of brokers on this machine: `python -m ottla.bench.broker`. docs/benchmarks.md describes the method."""
