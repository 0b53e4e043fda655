"""Benchmarks of brokers on this machine: `python -m ottla.bench.broker`.

docs/reference/benchmarks.md describes the method.
"""
