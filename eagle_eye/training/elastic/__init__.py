"""The self-healing worker of `eagle_eye.elastic`.

worker          the loop: compute, reduce, commit, apply; from epoch to epoch
session, store  the line to the launcher, and the ranks' meeting place behind it
groups          an epoch's connection between workers (gloo, nccl), cut in milliseconds
gradients       what was computed in the step in flight; exact and fast, two ways to add it up
model           what is trained
inventory       what its state consists of; transfer takes it from whoever has it
"""
