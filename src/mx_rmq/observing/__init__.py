"""Listeners of events."""
