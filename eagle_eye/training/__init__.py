"""What runs in a training process: the probe, checkpoints, profiling, and the elastic workers."""
