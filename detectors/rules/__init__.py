"""Rules as data: packs of TOML are read, checked and judged over the metrics of a frame."""
