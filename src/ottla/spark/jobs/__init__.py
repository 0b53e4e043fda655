"""The pipeline's jobs: archive the log, make tables of change logs, restore them as they were, count clicks.

Each job is built of functions from DataFrames to DataFrames; `ottla pipeline` runs them.
"""
