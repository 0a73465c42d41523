"""The history: every number of the batches, in Parquet files that DuckDB reads while they are written.

    stream ──► writing.py (a partition's records, window by window) ──► place.py (a directory or an object store)
                 └ tables.py (blocks → columns)                              ▲          ▲
               tending.py (small files into large ones, old ones away) ──────┘          │
               reading.py (series, metrics, entities: typed questions) ─────────────────┘

A file's name says all about it (files.py): what was done again after a crash gets the same name, and whoever reads
sees each row once, also while files are made into larger ones.
"""
