"""paraplan: finds the fastest parallel training layout that fits, on a CPU, without touching the cluster."""

__version__ = "0.1.0"
