"""Eight steps with a checkpoint of each, in which rank 1 dies once, in the fourth: torchrun --max-restarts 1 elastic_script.py FOLDER"""

import os
import signal
import sys
from pathlib import Path

import torch
import torch.distributed as dist

folder = Path(sys.argv[1])
restarts = os.environ["TORCHELASTIC_RESTART_COUNT"]
dist.init_process_group("tn")
rank, size = dist.get_rank(), dist.get_world_size()
saved = folder / "saved.pt"
step = torch.load(saved) if rank == 0 and saved.exists() else torch.zeros(1)
dist.broadcast(step, 0)
while step.item() < 8:
    if rank == 1 and step.item() == 3 and restarts == "0":
        (folder / "died").write_text(str(rank))
        os.kill(os.getpid(), signal.SIGKILL)
    one = torch.ones(1) / size
    dist.all_reduce(one)
    step += one.round()
    if rank == 0:
        torch.save(step, folder / "next.pt")
        os.replace(folder / "next.pt", saved)
    dist.barrier()
(folder / f"done-{rank}").write_text(f"restarts {restarts}, steps {int(step)}")
dist.destroy_process_group()
