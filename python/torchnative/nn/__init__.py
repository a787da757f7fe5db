"""Learning on top of torch modules: :mod:`torchnative.nn.federated`."""
