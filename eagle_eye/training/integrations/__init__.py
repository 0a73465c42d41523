"""The trainer's side of frameworks that have a training loop of their own; one file each, imported by whoever uses it."""
