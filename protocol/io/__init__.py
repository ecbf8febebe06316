"""Sockets: listen and serve, connect and call. The rules are in `framing`, `calls`, `bounds`, `patience`.

Uses nothing of the event loop beyond what the simulator's loop has: create_server and create_connection with
a BufferedProtocol, transports, call_soon, call_later, call_at, time, create_future.
"""

from tidelog.protocol.io.client import Connection, OnReply, connect
from tidelog.protocol.io.runner import run, tune_malloc
from tidelog.protocol.io.server import Handler, Incoming, Listener, ServerConnection, listen
from tidelog.protocol.io.stall import StallMeter

__all__ = [
    "Connection",
    "Handler",
    "Incoming",
    "Listener",
    "OnReply",
    "ServerConnection",
    "StallMeter",
    "connect",
    "listen",
    "run",
    "tune_malloc",
]
