"""The planner on running jobs: what they make, who should have how many workers, and what stands ready for the next event."""
