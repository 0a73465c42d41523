"""Training scripts as people write them: no line of them knows of Eagle Eye. Each trains until it is ended.

    python -m benchmarks.collect.unmodified.NAME FILE

Rank 0 appends to FILE when each step of its optimizer was done, in seconds of CLOCK_MONOTONIC: what a watcher is compared with.
"""
