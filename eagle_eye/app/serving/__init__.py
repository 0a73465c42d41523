"""`eagle-eye server`: one process with a role.

    process.py      signals, the services that every process has, and how it ends
    detecting.py    what `detect` runs: runners over partitions of the stream
    leading.py      what `lead` runs while it holds the lease: engine, control channel, outbox
    services.py     where further services are plugged in: per process, per term of a leader, per partition
"""
