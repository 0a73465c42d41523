"""Adapters: one file = one data set, found by its name. Each has `figures(folder: Path) -> Iterator[Figure]`."""
