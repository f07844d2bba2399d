"""Pipeline schedules: the order of blocks on every stage, and what follows from it."""
