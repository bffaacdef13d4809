"""pytorch/examples, vae: draws noise in forward, gives three tensors, sums its loss over pixels."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset
from toys import images


class VAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.fc21, self.fc22 = nn.Linear(64, 20), nn.Linear(20, 5), nn.Linear(20, 5)
        self.fc3, self.fc4 = nn.Linear(5, 20), nn.Linear(20, 64)

    def reparameterize(self, mu, logvar):
        std = torch.exp(0.5 * logvar)
        return mu + torch.randn_like(std) * std

    def forward(self, x):
        hidden = F.relu(self.fc1(x.flatten(1)))
        mu, logvar = self.fc21(hidden), self.fc22(hidden)
        z = self.reparameterize(mu, logvar)
        return torch.sigmoid(self.fc4(F.relu(self.fc3(z)))), mu, logvar


def model():
    return VAE()


def dataset(split):
    pictures = torch.sigmoid(images(120 if split == "train" else 40).tensors[0])
    return DataLoader(TensorDataset(pictures, pictures), batch_size=24, shuffle=True)


def loss(output, x):
    recon, mu, logvar = output
    bce = F.binary_cross_entropy(recon, x.flatten(1), reduction="sum")
    kld = -0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp())
    return (bce + kld) / len(x)


def optimizer(model):
    return torch.optim.Adam(model.parameters(), lr=1e-3)
