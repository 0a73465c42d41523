"""What checkpoints cost the training, and how fast they are back."""
