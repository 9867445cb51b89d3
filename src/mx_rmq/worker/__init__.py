"""The worker: fetches, runs and settles messages, and keeps the queue moving."""
