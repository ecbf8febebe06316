"""The client for programs that do not await: the same names, one thread behind them. See `tidelog.sync.connect`."""

from tidelog.client.io.sync import Admin, Client, Consumer, Delivery, Producer, connect

__all__ = ["Admin", "Client", "Consumer", "Delivery", "Producer", "connect"]
