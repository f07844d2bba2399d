"""The commands of ``paraplan``, one module each; imported only when they run."""
