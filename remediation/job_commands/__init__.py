"""Commands to the coordinators of jobs: what actions and framework drivers send."""
