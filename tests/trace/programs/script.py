"""A training script, as it stands in many repositories: arguments, a loop, and words on memory."""

import argparse

import torch

parser = argparse.ArgumentParser()
parser.add_argument("--batch", type=int, default=2)
arguments = parser.parse_args()
assert torch.cuda.is_available()
model = torch.nn.Sequential(torch.nn.Linear(1024, 4096), torch.nn.ReLU(), torch.nn.Linear(4096, 10)).to("cuda")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
for epoch in range(1000):
    x = torch.randn(arguments.batch, 1024).to("cuda")
    y = torch.randint(0, 10, (arguments.batch,)).cuda()
    loss = torch.nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(epoch, torch.cuda.max_memory_allocated())
