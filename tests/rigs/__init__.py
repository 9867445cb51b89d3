"""Several servers on loopback that belong together, for tests to break: a cluster, a Sentinel set, TLS."""
