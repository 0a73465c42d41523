"""What operators decide and command: approvals, silences, maintenance windows, breakers, notes, releases."""
