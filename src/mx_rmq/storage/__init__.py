"""All that speaks to the server. It knows nothing of workers or producers."""
