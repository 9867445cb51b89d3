"""``mx-rmq``, the command line: what an operator types, and what it prints."""
