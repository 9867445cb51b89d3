"""What the kernel knows of a connection's socket."""

from __future__ import annotations

import fcntl
import socket
import struct
import termios
from typing import Any


def outgoing(sock: Any) -> int:
    """How many bytes the kernel has still to deliver; 0 where it does not say."""
    try:
        (count,) = struct.unpack("i", fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, b"\0" * 4))
    except (OSError, ValueError, AttributeError):  # not of this system, or closed
        return 0
    return int(count)


def forget_unsent(sock: Any) -> None:
    """Let the kernel drop what it has still to deliver when the socket is closed.

    Else it goes on trying for minutes, and what was given up arrives after all.
    """
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    except (OSError, ValueError, AttributeError):  # closed already
        return
