"""Stub of torchmetrics, which is installed for the tests but not required by users.

lightning-fabric imports it only for its version, if available; the real import takes three seconds.
"""

__version__ = "0"
