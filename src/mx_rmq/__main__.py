"""``python -m mx_rmq`` is ``mx-rmq``."""

from mx_rmq.cli import entry

if __name__ == "__main__":
    entry.main()
