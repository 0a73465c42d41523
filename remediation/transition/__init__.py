"""From what the living workers of an elastic job hold to what each of them does next. Pure: no I/O, no clock, no chance."""

from .transition_plan import plan_transition

__all__ = ["plan_transition"]
