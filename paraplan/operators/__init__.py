"""What one operator of a layer costs, and the kernels and collectives it runs."""
