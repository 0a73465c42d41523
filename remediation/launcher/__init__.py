"""Launchers: one process per job and node that starts, supervises and heals its workers; one of them coordinates the job."""
