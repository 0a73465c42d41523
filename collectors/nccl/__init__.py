"""What NCCL tells of itself: its RAS subsystem's answers."""
