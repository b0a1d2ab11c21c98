"""One process or many: who we are among the ranks of torchrun, and what is summed or gathered over them.

Without torchrun there is one rank, and every function here is the identity. A "collective" must be called by each rank.
"""

import os
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.rendezvous import rendezvous

from isolation import count_cores

TIMEOUT = timedelta(minutes=30)  # of sums on the GPUs, where all ranks arrive at about the same time
HOST_TIMEOUT = timedelta(days=1)  # a rank may wait for a download, or for the slow programs of another
_host_group = None  # gloo beside NCCL: waiting for programs must not keep a GPU spinning, nor time out


def init_processes() -> int:
    """Join torchrun's process group, if there is one; return this rank."""
    global _host_group
    if int(os.environ.get("WORLD_SIZE", 1)) == 1:
        return 0
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    store, rank, world = next(rendezvous("env://", timeout=TIMEOUT))
    if os.environ.get("LOCAL_WORLD_SIZE") == os.environ["WORLD_SIZE"]:
        # torchrun --max-restarts on one node keeps its store: addresses of ranks that have died would be in the way
        store = dist.PrefixStore(f"restart-{restart_count()}", store)
    backend = "nccl" if torch.cuda.is_available() else "gloo"
    dist.init_process_group(backend, store=store, rank=rank, world_size=world, timeout=TIMEOUT)
    _host_group = dist.new_group(backend="gloo", timeout=HOST_TIMEOUT)
    return dist.get_rank()


def finish_processes() -> None:
    """Leave the group together: a rank that is torn down while another still talks to it may abort. A collective."""
    if rank_and_world()[1] > 1:
        dist.barrier(group=_host_group)
        dist.destroy_process_group()


def rank_and_world() -> tuple[int, int]:
    return (dist.get_rank(), dist.get_world_size()) if dist.is_available() and dist.is_initialized() else (0, 1)


def restart_count() -> int:
    """Return how often torchrun has started this command again after a rank died."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", 0))


def launch() -> str:
    """Name the process that started this one, torchrun's agent: its id, and where there is /proc when it began."""
    stat = Path(f"/proc/{os.getppid()}/stat")
    began = stat.read_text().rpartition(")")[2].split()[19] if stat.exists() else ""
    return f"{os.getppid()} {began}"


def cores_per_rank() -> int:
    """Return how many of the cores that this process may use (taskset, cgroups of Slurm) are this rank's."""
    return max(1, count_cores() // int(os.environ.get("LOCAL_WORLD_SIZE", 1)))


def device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


def all_sum(x):
    """Sum x over all ranks. A collective."""
    if rank_and_world()[1] > 1:
        x = x.clone()
        dist.all_reduce(x)
    return x


def all_max(x):
    """Return the largest entry of x on any rank, at least 0; x may be empty here. A collective."""
    largest = torch.cat([x.new_zeros(1), x.flatten()]).max()
    if rank_and_world()[1] > 1:
        dist.all_reduce(largest, dist.ReduceOp.MAX)
    return largest


def gather(items: list) -> list:
    """Return the items of all ranks, in the order of ranks. Waits on the host, however long a rank takes. A collective."""
    _, world = rank_and_world()
    if world == 1:
        return items
    parts = [None] * world
    dist.all_gather_object(parts, items, group=_host_group)
    return [item for part in parts for item in part]
