"""Checkpoints in the memory of another node: who keeps whose, how they get there, and how they come back."""
