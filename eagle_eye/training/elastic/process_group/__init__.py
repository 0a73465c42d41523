"""The process group of one epoch over gloo or NCCL: formed for it, aborted within milliseconds, never repaired."""
