"""PostgreSQL connectors: change data capture from a database, and a sink into one."""
