"""What every job of a cluster should look like next: pure computation, the same live and in simulation."""
