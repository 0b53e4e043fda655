"""`ottla bench`: measures any number of configurations, on Ottla and on other brokers, in the same way."""
