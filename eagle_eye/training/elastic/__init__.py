"""The elastic worker behind `eagle_eye.elastic`: its training loop, what it says to its launcher, and how an epoch starts and ends."""
