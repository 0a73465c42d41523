"""The detection loop: reads partitions, builds frames, runs detectors, writes findings and incidents."""
