"""One network on several processes: each computes its part of every batch, and all see the whole batch's loss.

The logits of all parts are gathered before the loss, so that a loss that looks at the batch as a whole (SECE, MMCE) is
the same as in one process; batch norm takes its statistics over all parts. Two processes with half the batch each give
the losses of one process, up to the order of the sums.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import cast

import torch
import torch.distributed as dist
from torch import Tensor, nn

from calibrant.core.errors import CalibrantError


@dataclass(frozen=True)
class World:
    """Which of how many processes this is."""

    rank: int = 0
    size: int = 1

    @property
    def first(self) -> bool:
        """Whether this is the process that writes and reports."""
        return self.rank == 0

    def gathered(self, own: Tensor) -> Tensor:
        """The rows of all processes in their order; the gradient flows to this process's rows alone."""
        if self.size == 1:
            return own
        parts = [torch.empty_like(own) for _ in range(self.size)]
        dist.all_gather(parts, own.detach().contiguous())
        parts[self.rank] = own
        return torch.cat(parts)

    def wrapped(self, network: nn.Module) -> nn.Module:
        """The network with gradients that are summed over the processes."""
        if self.size == 1:
            return network
        synchronise_norms(network)
        return nn.parallel.DistributedDataParallel(network)

    def wait(self) -> None:
        """Until all processes are here."""
        if self.size > 1:
            dist.barrier()

    def agreed(self, value: int) -> int:
        """The first process's value, in all processes."""
        if self.size == 1:
            return value
        device = "cuda" if dist.get_backend() == "nccl" else "cpu"
        told = torch.tensor([value], device=device)
        dist.broadcast(told, 0)
        return int(told)


def is_first_process() -> bool:
    """Whether this process is the one that speaks, before and after the processes are joined."""
    return int(os.environ.get("RANK", "0")) == 0


def own_device(device: torch.device) -> torch.device:
    """Of several processes on a machine, each takes a GPU of its own."""
    if device == torch.device("cuda") and "LOCAL_RANK" in os.environ:
        return torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    return device


@contextmanager
def joined(device: torch.device) -> Iterator[World]:
    """The processes that `torchrun` has started, or this one alone."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield World()
        return
    if "MASTER_ADDR" not in os.environ:
        raise CalibrantError(
            "WORLD_SIZE is set, but MASTER_ADDR is not; start several processes with torchrun"
        )
    began = not dist.is_initialized()
    if began:
        if device.type == "cuda":
            torch.cuda.set_device(device)
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    try:
        yield World(dist.get_rank(), dist.get_world_size())
    finally:
        if began:
            dist.destroy_process_group()


class _Summed(torch.autograd.Function):
    """A sum over all processes, whose gradient is the sum of their gradients."""

    @staticmethod
    def forward(_: object, value: Tensor) -> Tensor:
        total = value.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(_: object, *gradients: Tensor) -> Tensor:
        total = gradients[0].clone()
        dist.all_reduce(total)
        return total


def _summed(value: Tensor) -> Tensor:
    return cast(Tensor, _Summed.apply(value))  # type: ignore[no-untyped-call]


def _forward(norm: nn.modules.batchnorm._BatchNorm, inputs: Tensor) -> Tensor:
    """Batch norm in training over the batches of all processes, which are of one size."""
    if not norm.training:
        return type(norm).forward(norm, inputs)
    wide = inputs.float() if inputs.dtype != torch.float64 else inputs
    axes = [0, *range(2, wide.dim())]
    count = wide.numel() // wide.shape[1] * dist.get_world_size()
    shape = [1, -1] + [1] * (wide.dim() - 2)
    mean = _summed(wide.sum(axes)) / count
    centred = wide - mean.view(shape)
    variance = _summed(centred.square().sum(axes)) / count
    if norm.track_running_stats and norm.running_mean is not None and norm.running_var is not None:
        with torch.no_grad():
            share = norm.momentum if norm.momentum is not None else 0.1
            norm.running_mean.lerp_(mean.detach().to(norm.running_mean.dtype), share)
            unbiased = variance.detach() * count / max(count - 1, 1)
            norm.running_var.lerp_(unbiased.to(norm.running_var.dtype), share)
            if norm.num_batches_tracked is not None:
                norm.num_batches_tracked.add_(1)
    out = centred * torch.rsqrt(variance + norm.eps).view(shape)
    if norm.affine:
        out = out * norm.weight.view(shape) + norm.bias.view(shape)
    return out.to(inputs.dtype)


def synchronise_norms(network: nn.Module) -> None:
    """Give every batch norm the statistics of all processes; torch has this for GPUs only."""
    for module in network.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.forward = _forward.__get__(module)  # type: ignore[method-assign]
