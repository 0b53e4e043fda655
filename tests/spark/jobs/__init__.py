"""Tests of the pipeline's jobs."""
