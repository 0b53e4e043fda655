"""An SQLite database with two writers, its connector and three brokers, all killed at random; then restored.

python -m tests.connect.sqlite --transactions 2000 --seed 7
"""
