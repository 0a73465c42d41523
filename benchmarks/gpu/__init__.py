"""What needs a GPU to be seen: its phases, its faults, NCCL's own words."""
