"""The finished plan: its document, its report, its figures."""
