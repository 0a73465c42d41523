"""Live planning: the planner on running elastic jobs (measured throughput, decisions, precomputed plans, worker placement)."""
