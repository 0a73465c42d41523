"""The engine: incident → plan → guards → execution → verification, and the leader that runs it."""
