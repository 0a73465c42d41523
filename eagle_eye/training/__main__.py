"""Starts the zygote: `python -m eagle_eye.training --fd N`, or `python DIRECTORY_OF_THIS_FILE --fd N`.

The second form is for an interpreter in whose environment eagle_eye is not installed: this package, and nothing
else of the launcher's environment, is then made importable from its own folder.
"""

import importlib.util
import sys
from pathlib import Path


def adopt() -> None:
    """Make the package `eagle_eye` that this file is part of importable, without a path that shows anything else."""
    home = Path(__file__).resolve().parent.parent
    spec = importlib.util.spec_from_file_location(
        "eagle_eye", home / "__init__.py", submodule_search_locations=[str(home)]
    )
    if spec is None or spec.loader is None:
        raise ImportError(f"no package eagle_eye at {home}")
    package = importlib.util.module_from_spec(spec)
    sys.modules["eagle_eye"] = package
    spec.loader.exec_module(package)


if __name__ == "__main__":
    if not __package__:
        del sys.path[0]  # this very directory: its file names must not become top-level modules
        if not sys.flags.safe_path:
            sys.path.insert(0, "")  # the place that a script's own directory takes later
        adopt()
    from eagle_eye.training.zygote import main

    main(sys.argv[1:])
