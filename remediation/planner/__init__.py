"""The planner: how many workers each job gets, in which layout, and the cheapest repair. Pure computation: no I/O but cluster files, no clock."""
