"""PostgreSQL: change capture from it, and a sink into it."""
