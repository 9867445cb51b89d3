"""What operators ask of a queue and do to it."""
