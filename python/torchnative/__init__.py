"""Federated learning for torch.distributed, with everything below the API in C.

Importing this package does not import torch: `torchnative.distributed` and `torchnative.nn.federated` do.
"""

from torchnative._tn import __version__

__all__ = ["__version__"]
