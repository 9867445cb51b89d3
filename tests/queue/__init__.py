"""The queue as its users meet it."""
