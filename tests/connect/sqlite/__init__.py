"""An SQLite database under two writers, its connector and three brokers, all of them killed at random; then restored.

python -m tests.connect.sqlite --transactions 2000 --seed 7
"""
