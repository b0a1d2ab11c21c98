"""ranks.py: waiting for another rank's programs, its download or its last checkpoint outlasts the limit of the sums."""

import os
import socket
import time
from datetime import timedelta

import torch
from toy import spawn_two_ranks

import ranks


def run_rank(rank: int, directory: str) -> None:
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank)}
    ranks.TIMEOUT = timedelta(seconds=1)
    assert ranks.init_processes() == rank
    time.sleep(1.5 * rank)
    gathered = ranks.gather([rank])
    total = int(ranks.all_sum(torch.ones(1)))
    torch.save({"gathered": gathered, "sum": total}, f"{directory}/rank{rank}.pt")
    time.sleep(1.5 * rank)
    ranks.finish_processes()


def test_only_the_host_group_waits_long(tmp_path, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    for name, value in {"WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}.items():
        monkeypatch.setenv(name, str(value))
    assert spawn_two_ranks(run_rank, tmp_path) == [{"gathered": [0, 1], "sum": 2}] * 2
