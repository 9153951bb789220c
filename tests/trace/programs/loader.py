"""A training script as many repositories have it: shuffled batches of workers, mixed precision, a guard, an accuracy, a checkpoint."""

import sys

import torch
from torch.utils.data import DataLoader, TensorDataset

CHECKPOINT = sys.argv[1]
data = TensorDataset(torch.randn(256, 3, 32, 32), torch.randint(0, 10, (256,)))
loader = DataLoader(data, batch_size=32, shuffle=True, num_workers=2, pin_memory=True, persistent_workers=True)
model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(8 * 30 * 30, 10)).to("cuda")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
for _ in range(2):
    right = 0
    for batch in loader:
        images, classes = (tensor.to("cuda", non_blocking=True) for tensor in batch)
        with torch.autocast("cuda", torch.bfloat16):
            scores = model(images)
            loss = torch.nn.functional.cross_entropy(scores, classes)
        if torch.isnan(loss) or not torch.isfinite(scores).all():
            raise SystemExit("the loss is not finite")
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        right += (scores.argmax(1) == classes).sum().item()
        torch.save(model.state_dict(), CHECKPOINT)
    print(f"accuracy {right / len(data):.1%}")
