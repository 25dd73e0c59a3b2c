"""A SQLite file as a destination of trucker."""
