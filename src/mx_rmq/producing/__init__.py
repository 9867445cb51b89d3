"""Storing messages: options, ids, group commit, chunks, and the same without an event loop."""
