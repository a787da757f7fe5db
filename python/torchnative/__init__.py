"""Federated learning for torch.distributed, with everything below the API in C.

Importing this package imports neither torch nor the native library: `import torch` imports it too, to find the backend "tn", in programs
that may never use it.
"""

__all__ = ["__version__", "privacy"]


def __getattr__(name):
    if name == "privacy":
        from importlib import import_module

        return import_module("torchnative.privacy")
    if name != "__version__":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from torchnative import _tn

    return _tn.__version__
