"""Fixtures for other people's tests: a real broker on a real port."""

from __future__ import annotations
