"""Many machines: the stream of a cluster, its memory, its alerts and its suppressions."""
