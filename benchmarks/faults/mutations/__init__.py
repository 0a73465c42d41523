"""Mutated records: python -m benchmarks.faults.mutations."""
