"""Two processes train one model: DistributedDataParallel around a model that was given to fastjit."""

import os
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import fastjit as fj

STEPS = 5


def train(rank: int, processes: int, meeting: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=processes)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 2))
    shared = DistributedDataParallel(fj.fastjit(model))
    optimizer = torch.optim.AdamW(shared.parameters())
    for step in range(STEPS):
        torch.manual_seed(step * processes + rank)  # each process has data of its own
        x = torch.randn(16, 8)
        loss = nn.functional.mse_loss(shared(x), x[:, :2])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    stats = fj.of(model).stats()
    sums = [torch.zeros(1) for _ in range(processes)]
    dist.all_gather(sums, sum(p.detach().sum() for p in model.parameters()).reshape(1))
    assert all(torch.equal(each, sums[0]) for each in sums), "every process has the same weights"
    dist.destroy_process_group()
    if rank == 0:
        print(f"calls {stats.calls}, hits {stats.hits}, fallbacks {stats.fallbacks}", flush=True)
    os._exit(0)  # threads of gloo's abort some processes that end otherwise, of eager programs too


if __name__ == "__main__":
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(train, (2, f"{folder}/meeting"), nprocs=2)
