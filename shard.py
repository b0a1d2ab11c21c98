"""Fully sharded data parallelism (FSDP2, `--shard`): each rank keeps its part of every weight, gradient and optimizer state.

A training forward or backward gathers one layer at a time and gives it back; every rank must then make equally many of them.
Where ranks do different amounts of work, in sampling and scoring, `gathered` keeps whole weights for a while. The value head
is small and stays whole. Without --shard every function here is what a single process would do.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_optimizer_state_dict, set_optimizer_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from lora import decoder_layers
from model import Policy
from ranks import all_max, all_sum

WHOLE = StateDictOptions(full_state_dict=True, cpu_offload=True)  # on rank 0; by names, so that any number of ranks can load it


def shard(policy: Policy) -> Policy:
    """Shard a policy that is equal on all ranks, in place: a unit per decoder layer, one for the rest. A collective."""
    mesh = init_device_mesh(policy.device.type, (dist.get_world_size(),))
    for layer in decoder_layers(policy.lm):
        fully_shard(layer, mesh=mesh)
    fully_shard(policy, mesh=mesh, ignored_params=set(policy.value_head.parameters()))
    for unit in _units(policy):  # losses are divided by the tokens of all ranks: gradients are summed, not averaged
        unit.set_gradient_divide_factor(1.0)
        unit.set_force_sum_reduction_for_comms(True)
    with gathered(policy), torch.no_grad():  # FSDP takes what runs first for its root, and the sampler would run a part
        policy(torch.zeros(1, 1, dtype=torch.long, device=policy.device))
    return policy


def _units(policy: torch.nn.Module) -> list[FSDPModule]:
    return [module for module in policy.modules() if isinstance(module, FSDPModule)]


@contextmanager
def gathered(*policies: Policy) -> Iterator[None]:
    """Hold whole weights, so that forwards within are no collectives. For inference only. Entering is a collective."""
    for unit in (unit for policy in policies for unit in _units(policy)):
        unit.set_reshard_after_forward(False, recurse=False)
        unit.unshard()
    try:
        yield
    finally:
        for policy in policies:
            for unit in _units(policy):
                unit.set_reshard_after_forward(unit is not policy, recurse=False)
                unit.reshard()


def even_out(policy: torch.nn.Module, micro_batches: list[dict], batch: dict[str, Tensor]) -> list[dict[str, Tensor]]:
    """Return the micro-batches of a sharded policy, as many on every rank: empty ones, without a token, are added."""
    if not isinstance(policy, FSDPModule):
        return micro_batches
    empty = {name: x.new_zeros((1, 2) if x.dim() == 2 else (1,)) for name, x in batch.items()}
    most = int(all_max(torch.tensor([len(micro_batches)], device=empty["tokens"].device)))
    return micro_batches + [empty] * (most - len(micro_batches))


def sum_gradients(policy: torch.nn.Module) -> None:
    """Sum the gradients over ranks, those without one give zeros; FSDP has done so for its own. A collective."""
    for p in policy.parameters():
        if p.requires_grad and not isinstance(p, DTensor):
            p.grad = all_sum(torch.zeros_like(p) if p.grad is None else p.grad)


def clip_gradients(policy: torch.nn.Module, max_norm: float) -> float:
    """Clip the norm of all gradients together, in place; return it as it was. A collective."""
    parameters = [p for p in policy.parameters() if p.grad is not None]
    kinds = [[p for p in parameters if isinstance(p, DTensor) == sharded] for sharded in (False, True)]
    norms = [_whole(get_total_norm([p.grad for p in kind])) for kind in kinds if kind]
    norm = get_total_norm(norms)
    for kind in kinds:
        clip_grads_with_norm_(kind, max_norm, norm)
    return float(norm)


def _whole(x: Tensor) -> Tensor:
    return x.full_tensor() if isinstance(x, DTensor) else x


def whole_weights(policy: Policy) -> dict[str, Tensor] | None:
    """Return the language model's weights on the CPU, tied ones once; {} but on rank 0, None if not sharded. A collective."""
    if not isinstance(policy, FSDPModule):
        return None
    weights, rank = {}, dist.get_rank()
    for name, x in policy.lm.named_parameters():
        whole = _whole(x.detach())
        if rank == 0:  # a node's ranks together would need its memory many times
            weights[name] = whole.cpu()
    return weights


def whole_optimizer_state(policy: Policy, optimizer: torch.optim.Optimizer) -> dict:
    """Return the optimizer's state by parameter names, on the CPU; empty but on rank 0 if sharded. A collective."""
    if not optimizer.state:  # before the first step; torch would take one, with gradients of zero
        return {}
    return get_optimizer_state_dict(policy, optimizer, options=WHOLE)


def load_optimizer_state(policy: Policy, optimizer: torch.optim.Optimizer, state: dict) -> None:
    """Take the whole state into an optimizer, sharded or not. A collective."""
    if state:
        set_optimizer_state_dict(policy, optimizer, state, options=WHOLE)
