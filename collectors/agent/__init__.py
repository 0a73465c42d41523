"""The node agent: schedules collectors, builds batches, knows the jobs of the node, removes what dead jobs left."""
