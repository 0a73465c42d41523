"""The simulator: recovery policies on the same fault traces, years of a cluster in seconds, with the planner that runs live."""
