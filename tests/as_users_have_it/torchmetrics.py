"""Stands for torchmetrics, which our tests have and users need not have.

lightning-fabric imports it if it can, for its version alone; that takes three seconds of every command.
"""

__version__ = "0"
