"""What a process does at this moment, seen from outside: the proof that a stalled worker hangs, or that it only works."""
