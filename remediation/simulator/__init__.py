"""Years of cluster life in seconds: every recovery policy on the same faults, with the planner that runs live."""
