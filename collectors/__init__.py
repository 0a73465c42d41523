"""Collectors: one file per source of telemetry on a node. The agent that runs them is in agent/."""

from eagle_eye import __version__ as __version__
