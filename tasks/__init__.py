"""Prefect tasks, one module per step of the plan: each calls the library and says what its result means."""
