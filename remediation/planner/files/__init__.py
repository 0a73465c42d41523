"""`eagle-eye plan FILE`: the cluster file, what-if events, the allocation for them, and the plan report."""
