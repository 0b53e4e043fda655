"""`ottla doctor`: checks of the machine and of settings."""
