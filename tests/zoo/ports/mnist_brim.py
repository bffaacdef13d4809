"""pytorch/examples, mnist: a convolutional network, a test and a scheduler per epoch."""

import argparse

import torch
import torch.nn.functional as F
from torch import nn, optim
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader, TensorDataset

import brim


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 8, 3, 1)
        self.conv2 = nn.Conv2d(8, 16, 3, 1)
        self.dropout1 = nn.Dropout(0.25)
        self.dropout2 = nn.Dropout(0.5)
        self.fc1 = nn.Linear(256, 32)
        self.fc2 = nn.Linear(32, 10)

    def forward(self, x):
        x = F.relu(self.conv1(x))
        x = F.relu(self.conv2(x))
        x = self.dropout1(F.max_pool2d(x, 2))
        x = F.relu(self.fc1(torch.flatten(x, 1)))
        return F.log_softmax(self.fc2(self.dropout2(x)), dim=1)


def digits(count, seed):
    """Stands in for datasets.MNIST: noise around a picture of each digit."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % 10
    pictures = torch.randn(10, 1, 12, 12, generator=torch.Generator().manual_seed(0))
    noise = torch.randn(count, 1, 12, 12, generator=generator)
    return TensorDataset(pictures[labels] + 0.5 * noise, labels)


def train(args, model, device, train_loader, job, epoch):
    model.train()
    for batch_idx, (data, target) in enumerate(job.batches(train_loader)):
        data, target = data.to(device), target.to(device)
        output = model(data)
        loss = F.nll_loss(output, target)
        job.step(loss)
        if batch_idx % args.log_interval == 0:
            print(
                f"Train Epoch: {epoch} [{batch_idx}/{len(train_loader)}]\tLoss: {loss.item():.6f}"
            )


def test(model, device, test_loader):
    model.eval()
    test_loss, correct = 0, 0
    with torch.no_grad():
        for data, target in test_loader:
            data, target = data.to(device), target.to(device)
            output = model(data)
            test_loss += F.nll_loss(output, target, reduction="sum").item()
            pred = output.argmax(dim=1, keepdim=True)
            correct += pred.eq(target.view_as(pred)).sum().item()
    print(f"Test set: loss {test_loss / len(test_loader.dataset):.4f}, accuracy {correct}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--lr", type=float, default=1.0)
    parser.add_argument("--gamma", type=float, default=0.7)
    parser.add_argument("--log-interval", type=int, default=10)
    args = parser.parse_args()
    torch.manual_seed(1)
    device = torch.device("cpu")
    train_loader = DataLoader(digits(160, 1), batch_size=args.batch_size, shuffle=True)
    test_loader = DataLoader(digits(40, 2), batch_size=40)
    model = Net().to(device)
    optimizer = optim.Adadelta(model.parameters(), lr=args.lr)
    scheduler = StepLR(optimizer, step_size=1, gamma=args.gamma)
    job = brim.join(model, optimizer, scheduler=scheduler)
    for epoch in job.epochs(args.epochs):
        train(args, model, device, train_loader, job, epoch)
        test(model, device, test_loader)


if __name__ == "__main__":
    main()
