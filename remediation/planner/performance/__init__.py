"""T(t, x), the throughput of a task on x GPUs: analytic model, calibration, measurements and layer profiles."""
