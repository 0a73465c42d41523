"""Transitions of elastic jobs: from the state that the surviving workers hold to what each of them does next. Pure: no I/O, clock or randomness."""

from .transition_plan import plan_transition

__all__ = ["plan_transition"]
