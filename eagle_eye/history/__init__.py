"""The history: every number of the batches, in Parquet files that DuckDB reads while they are written.

    stream ──► partition_writer.py (a partition's records, window by window) ──► object_store.py (a directory or an object store)
                 └ parquet_tables.py (blocks → columns)                              ▲          ▲
               compaction.py (small files into large ones, old ones away) ──────┘          │
               queries.py (series, metrics, entities: typed questions) ─────────────────┘

A file's name holds all about it (file_names.py): what was done again after a crash gets the same name, and a reader
sees each row once, also while files are made into larger ones.
"""
