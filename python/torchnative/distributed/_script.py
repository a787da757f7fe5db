"""The one piece of TorchScript: a Future typed as a list of tensors that is done when another Future is. See WorkTN.get_future."""

from typing import List  # TorchScript reads these names, not list[...]

import torch
from torch.futures import Future


def _tensors_after(future: Future[List[torch.Tensor]], tensors: List[torch.Tensor]) -> List[torch.Tensor]:
    torch.jit.wait(future)
    return tensors


def typed_fork():
    after = torch.jit.script(_tensors_after)

    @torch.jit.script
    def fork(future: Future[List[torch.Tensor]], tensors: List[torch.Tensor]) -> Future[List[torch.Tensor]]:
        return torch.jit.fork(after, future, tensors)

    return fork
