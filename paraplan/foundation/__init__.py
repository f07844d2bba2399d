"""What every other package builds on: errors, records, documents, arrays. Imports nothing of paraplan."""
