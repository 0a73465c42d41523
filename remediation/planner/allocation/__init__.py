"""Allocation of workers to tasks (Unicron): the objective, the exact dynamic program, the event table of all next events."""
