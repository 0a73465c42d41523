"""The coordinator of a job: a state machine that turns facts into effects, and what carries these out."""
