"""Faults that are really made in real jobs, each held against what Eagle Eye tells of it."""
