"""Writers of the append stream: who may append, and which of a writer's records the log has when it reconnects."""
