"""The elastic worker behind `eagle_eye.elastic`: its training loop, its session with the launcher, and how an epoch starts and ends."""
