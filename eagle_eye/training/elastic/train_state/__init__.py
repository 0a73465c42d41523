"""The training state of a worker by layer: which tensors it consists of, their bytes, and their memory."""
