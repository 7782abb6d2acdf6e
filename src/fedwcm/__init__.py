"""FedWCM: federated learning on long-tailed, non-IID data."""

__version__ = "0.1.0"
