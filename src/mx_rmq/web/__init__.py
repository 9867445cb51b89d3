"""The dashboard: the queue in a browser. It calls a queue's public methods, and no Redis command."""
