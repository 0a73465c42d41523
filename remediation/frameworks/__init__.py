"""How a transition reaches a running job: one driver per framework, each says what it can. docs/frameworks.md.

elastic        eagle_eye.elastic: in place, any number of workers on each node
transformers   transformers.Trainer with our integration: in place, data parallel
torchrun       any other script: all of it restarts, with whole nodes
"""

from eagle_eye.errors import ConfigError

from .elastic_worker import ElasticWorkers
from .torchrun import Torchrun
from .transformers import Transformers

__all__ = ["FRAMEWORKS", "ElasticWorkers", "Torchrun", "Transformers", "driver"]

Driver = type[ElasticWorkers] | type[Torchrun]
FRAMEWORKS: dict[str, Driver] = {"elastic": ElasticWorkers, "torchrun": Torchrun, "transformers": Transformers}


def driver(name: str) -> Driver:
    """The class of a framework's driver. Raises ConfigError for one that we do not know."""
    if name not in FRAMEWORKS:
        raise ConfigError(f"no driver for the framework {name!r}; there are {', '.join(FRAMEWORKS)}; torchrun suits any script")
    return FRAMEWORKS[name]
