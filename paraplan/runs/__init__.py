"""Published runs: their table, what calibration learns from a user's own runs, and the error that remains."""
