"""The PyTorch quickstart (Fashion-MNIST).

NeuralNetwork, train() and test(), five epochs there, three here.
"""

import torch
from torch import nn
from torch.utils.data import DataLoader
from toys import images

import brim

batch_size = 24
train_dataloader = DataLoader(images(120), batch_size=batch_size, shuffle=True)
test_data = images(40, seed=1)


class NeuralNetwork(nn.Module):
    def __init__(self):
        super().__init__()
        self.flatten = nn.Flatten()
        self.linear_relu_stack = nn.Sequential(
            nn.Linear(8 * 8, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 4)
        )

    def forward(self, x):
        return self.linear_relu_stack(self.flatten(x))


torch.manual_seed(0)
model = NeuralNetwork()
loss_fn = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
job = brim.join(model, optimizer)


def train(dataloader, model, loss_fn):
    model.train()
    for batch in job.batches(dataloader):
        pred = model(batch.inputs)
        job.step(loss_fn(pred, batch.target))


def test(data):
    print(job.evaluate(data, {"accuracy": brim.metrics.accuracy()}))


for _ in job.epochs(3):
    train(train_dataloader, model, loss_fn)
    test(test_data)
