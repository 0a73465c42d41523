"""transformers.Trainer with eagle_eye.training.integrations.transformers: an elastic worker like any other, data parallel."""

from dataclasses import dataclass

from eagle_eye.errors import PermanentError
from eagle_eye.types import Outcome, Transition

from .elastic_worker import ElasticWorkers


@dataclass(frozen=True, slots=True, kw_only=True)
class Transformers(ElasticWorkers):
    """Each worker runs a Trainer that believes it is alone; its gradients go through the elastic worker's reduction."""

    def apply(self, transition: Transition, /) -> Outcome:
        """Raises PermanentError for a layout with pipelines or tensor parallelism, TemporaryError as ElasticWorkers does."""
        split = [place.worker for place in transition.target.placements if place.pp or place.tp]
        if split:
            raise PermanentError(f"{transition.job}: {split[0]} is to hold a part of the model; a Trainer holds all of it: plan for data parallel workers")
        return ElasticWorkers.apply(self, transition)
