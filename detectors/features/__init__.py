"""What several detectors share: values computed from frames, the table of error statuses, the claims a detector has open."""
