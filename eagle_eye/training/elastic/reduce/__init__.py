"""Gradients: what a worker accumulates in a step, and the two reductions (exact and fast) that add it up over all workers."""
