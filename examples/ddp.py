import torch, torch.distributed as dist  # torchrun --nproc-per-node 4 examples/ddp.py

dist.init_process_group("tn")  # where "gloo" stood
torch.manual_seed(0)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(10, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
torch.manual_seed(dist.get_rank())
for step in range(100):
    x = torch.randn(32, 10)
    optimizer.zero_grad()
    (model(x) - x.sum(1, keepdim=True)).square().mean().backward()
    optimizer.step()
if dist.get_rank() == 0:
    print("weights", [round(value, 4) for value in model.module.weight[0].tolist()], "on", dist.get_backend())
dist.destroy_process_group()
