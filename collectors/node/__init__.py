"""Parts of a machine that collectors look at: ports of its network, mounts, processes and clocks."""
