"""Kinds of drills: one file a family, each with its faults and their innocent twins."""

from collections.abc import Sequence

from eagle_eye.app.evaluation.drill_corpus.drill_job import DrillKind

from . import of_data, of_deaths, of_losses, of_nodes, of_parts, of_shared_parts, of_slowness, of_stalls

KINDS: Sequence[DrillKind] = (*of_deaths.KINDS, *of_stalls.KINDS, *of_nodes.KINDS, *of_slowness.KINDS, *of_losses.KINDS, *of_data.KINDS, *of_parts.KINDS, *of_shared_parts.KINDS)
BY_NAME = {kind.name: kind for kind in KINDS}
