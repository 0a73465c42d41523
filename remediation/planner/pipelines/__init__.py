"""Pipelines (Oobleck): templates, packing, instantiation, micro-batch distribution, and reconfiguration after a loss."""
