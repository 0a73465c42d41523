"""The unit of a metric, which its name ends with."""

UNITS = {
    "_bytes_per_s": "B/s", "_per_s": "1/s", "_percent": "%", "_watts": "W", "_celsius": "°C", "_mhz": "MHz", "_bytes": "B", "_seconds": "s",
    "_s": "s", "_ratio": "", "_joules": "J", "_milliwatts": "mW", "_millijoules": "mJ", "_kib": "KiB", "_mib": "MiB",
}  # fmt: skip


def unit_of(metric: str) -> str:
    """'' where the name does not tell.

    >>> unit_of("power_watts"), unit_of("net_sent_bytes_per_s"), unit_of("loss")
    ('W', 'B/s', '')
    """
    return next((unit for ending, unit in UNITS.items() if metric.endswith(ending)), "")
