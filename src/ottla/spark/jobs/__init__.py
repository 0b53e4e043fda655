"""The pipeline's jobs: archive the log, build tables from change logs, restore tables to a point in time, count clicks.

Each job consists of functions from DataFrames to DataFrames, which `ottla pipeline` runs.
"""
