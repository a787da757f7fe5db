"""What the native module has to know of torch, told when the first tensor is used."""

from torchnative import _tn


def tensor_ready():
    """Gives the native module torch's dtypes. Idempotent; imports torch."""
    import torch

    _tn.set_dtypes({getattr(torch, name): number for name, number in _tn.DTYPES.items() if hasattr(torch, name)})


def torch_dtype(number):
    """torch's dtype for the native module's number of it."""
    import torch

    return getattr(torch, next(name for name, known in _tn.DTYPES.items() if known == number))
