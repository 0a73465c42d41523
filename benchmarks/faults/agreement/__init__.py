"""A model check of launchers and server: their real code under simulated time, network, disks and worker processes."""
