"""Trains with DDP and prints a hash of the weights: torchrun --nproc-per-node 4 ddp_script.py tn"""
import hashlib, sys, torch, torch.distributed as dist  # noqa: E401
dist.init_process_group(sys.argv[1])
torch.manual_seed(0)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
torch.manual_seed(1 + dist.get_rank())
for _ in range(10):
    optimizer.zero_grad(); model(torch.randn(16, 64)).square().mean().backward(); optimizer.step()  # noqa: E702
weights = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
print("weights", dist.get_rank(), hashlib.sha256(weights.numpy().tobytes()).hexdigest(), weights.double().sum().item(), flush=True)
torch.save(weights, f"{sys.argv[2]}-{dist.get_rank()}") if len(sys.argv) > 2 else None
dist.destroy_process_group()
