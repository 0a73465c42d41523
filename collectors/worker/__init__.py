"""Observation of one worker process: its /proc entry, its ring, and when it counts as stalled."""
