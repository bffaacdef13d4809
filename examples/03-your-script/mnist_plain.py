"""Which shape is it? A convolutional network, trained and tested in each epoch."""

import torch
from shapes import CLASSES, shapes
from torch import nn
from torch.nn import functional
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 8, 3)
        self.conv2 = nn.Conv2d(8, 16, 3)
        self.dropout = nn.Dropout(0.25)
        self.fc = nn.Linear(16 * 6 * 6, CLASSES)

    def forward(self, x):
        x = functional.relu(self.conv1(x))
        x = functional.max_pool2d(functional.relu(self.conv2(x)), 2)
        return self.fc(self.dropout(torch.flatten(x, 1)))


def train(model, loader, optimizer):
    model.train()
    for data, target in loader:
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(data), target)
        loss.backward()
        optimizer.step()


def test(model, loader):
    model.eval()
    correct = 0
    with torch.no_grad():
        for data, target in loader:
            correct += (model(data).argmax(1) == target).sum().item()
    return correct / len(loader.dataset)


def main():
    torch.manual_seed(1)
    train_loader = DataLoader(shapes(320, seed=1), batch_size=64, shuffle=True)
    test_loader = DataLoader(shapes(200, seed=2), batch_size=100)
    model = Net()
    optimizer = torch.optim.Adadelta(model.parameters(), lr=1.0)
    scheduler = StepLR(optimizer, step_size=1, gamma=0.7)
    for epoch in range(3):
        train(model, train_loader, optimizer)
        print(f"epoch {epoch}: accuracy {test(model, test_loader):.3f}")
        scheduler.step()


if __name__ == "__main__":
    main()
