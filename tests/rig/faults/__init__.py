"""What can go wrong: with the network, with callers, and with servers."""

from tests.rig.faults import callers, network, servers
from tests.rig.faults.registry import FAULTS, LONG, SHORT, Fault

__all__ = ["FAULTS", "LONG", "SHORT", "Fault", "callers", "network", "servers"]
