"""Everything that talks to the server. It does not depend on workers or producers."""
