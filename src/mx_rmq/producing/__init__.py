"""Storing messages: options, ids, group commit, chunks, and a producer without an event loop."""
