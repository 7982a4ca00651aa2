"""``offloaded``: saved activations wait for the backward in host memory."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch.autograd.graph import saved_tensors_hooks


def offloaded(parameters: Iterable[torch.Tensor]) -> saved_tensors_hooks:
    """A ``with`` block in which saved tensors are copied to the host (pinned, from a GPU), and back when asked for.

    Copies run on the current stream, between kernels.

    Args:
        parameters: tensors that stay where they are.
    """
    stays = {parameter.untyped_storage().data_ptr() for parameter in parameters}

    def away(tensor: torch.Tensor) -> Any:
        """To the host."""
        if tensor.untyped_storage().data_ptr() in stays:
            return tensor
        is_cuda = tensor.device.type == "cuda"
        host = torch.empty(tensor.size(), dtype=tensor.dtype, pin_memory=is_cuda)
        host.copy_(tensor.detach(), non_blocking=is_cuda)
        return tensor.device, host

    def back(kept: Any) -> torch.Tensor:
        """And back."""
        if isinstance(kept, torch.Tensor):
            return kept
        device, host = kept
        return host.to(device, non_blocking=host.is_pinned()) if device.type == "cuda" else host

    return saved_tensors_hooks(away, back)
