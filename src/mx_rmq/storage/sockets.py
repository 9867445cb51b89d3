"""What the kernel knows about a connection's socket."""

from __future__ import annotations

import fcntl
import socket
import struct
import termios
from typing import Any


def outgoing(sock: Any) -> int:
    """How many bytes the kernel has not delivered yet; 0 if it cannot tell."""
    try:
        (count,) = struct.unpack("i", fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, b"\0" * 4))
    except (OSError, ValueError, AttributeError):  # not supported on this system, or closed
        return 0
    return int(count)


def forget_unsent(sock: Any) -> None:
    """Make the kernel drop undelivered bytes when the socket is closed.

    Otherwise it keeps trying for minutes, and a call that was given up still arrives.
    """
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    except (OSError, ValueError, AttributeError):  # closed already
        return
