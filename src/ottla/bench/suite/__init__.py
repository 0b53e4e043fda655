"""`ottla bench`: any number of configurations, on Ottla and beside it on other brokers, measured the same way."""
