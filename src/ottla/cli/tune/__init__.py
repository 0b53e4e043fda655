"""`ottla tune`: kernel settings for a broker, shown with their reasons, applied and undone."""
