"""The version of the package."""

__version__ = "2.0.0a1"
