"""What a report of a failed run shows: signs of its lines, and the known failures that they speak for. Data in known/ and signs/."""
