"""What one broker gives on this machine: `python -m ottla.bench.broker`. docs/benchmarks.md says how it is measured."""
