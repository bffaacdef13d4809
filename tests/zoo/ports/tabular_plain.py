"""Tabular classification as beginners' notebooks have it: embeddings, early stopping, a best model."""

import copy

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

rng = np.random.default_rng(0)
categories = rng.integers(0, 10, (240, 3))
numbers = rng.normal(size=(240, 5)).astype(np.float32)
labels = ((categories[:, 0] % 2 + numbers[:, 0]) > 0.5).astype(np.float32)


class TabularDataset(Dataset):
    def __init__(self, rows):
        self.categories, self.numbers, self.labels = categories[rows], numbers[rows], labels[rows]

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, idx):
        return self.categories[idx], self.numbers[idx], self.labels[idx]


class TabularModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.embeddings = nn.ModuleList([nn.Embedding(10, 4) for _ in range(3)])
        self.norm = nn.BatchNorm1d(5)
        self.layers = nn.Sequential(nn.Linear(17, 32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 1))

    def forward(self, x_cat, x_num):
        embedded = [emb(x_cat[:, i]) for i, emb in enumerate(self.embeddings)]
        return self.layers(torch.cat([*embedded, self.norm(x_num)], dim=1)).squeeze(1)


torch.manual_seed(42)
train_loader = DataLoader(TabularDataset(slice(0, 192)), batch_size=48, shuffle=True)
valid_loader = DataLoader(TabularDataset(slice(192, 240)), batch_size=48)
model = TabularModel()
criterion = nn.BCEWithLogitsLoss()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=1e-4)
scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=1)

best_loss, patience = float("inf"), 0
for epoch in range(4):
    model.train()
    running_loss = 0.0
    for x_cat, x_num, y in train_loader:
        optimizer.zero_grad()
        loss = criterion(model(x_cat, x_num), y)
        loss.backward()
        optimizer.step()
        running_loss += loss.item()
    model.eval()
    with torch.no_grad():
        valid_loss = np.mean([criterion(model(c, n), y).item() for c, n, y in valid_loader])
    scheduler.step(valid_loss)
    print(f"epoch {epoch}: train {running_loss / len(train_loader):.4f}, valid {valid_loss:.4f}")
    if valid_loss < best_loss:
        best_loss, patience = valid_loss, 0
        best_model = copy.deepcopy(model.state_dict())
    else:
        patience += 1
        if patience == 3:
            break
