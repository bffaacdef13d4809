"""Which films to show a user? Two towers in a loop of one's own; all films of a batch compete.

python loop.py u.data
brim run --workers 4 -- python loop.py u.data
"""

import sys

import numpy as np
import torch
from ratings import ratings

import brim
from brim import models


def all_of(dataset):
    """Users, films, and whether they liked them, of all rows."""
    inputs, liked = dataset.take(np.arange(len(dataset)))
    return inputs["ids"][:, 0], inputs["ids"][:, 1], liked > 0


def hit_rate(scores, train, test, first=10):
    """How many of the liked films of the test rows are among the user's best ten that they have not
    rated before.
    """
    users, films, _ = all_of(train)
    scores[users, films] = -torch.inf
    users, films, liked = all_of(test)
    users, films = users[liked], films[liked]
    better = scores[users] > scores[users, films].unsqueeze(1)
    return (better.sum(1) < first).float().mean().item()


torch.manual_seed(0)
train, test = (ratings(sys.argv[1], split) for split in ("train", "test"))
ids = torch.arange(train.vocabulary_size).unsqueeze(1)
_, films, _ = all_of(train)
counts = films.bincount(minlength=len(ids))

model = models.TwoTower(len(ids), user_fields=1, item_fields=1, temperature=0.2, counts=counts)
optimizer = torch.optim.Adagrad(model.parameters(), lr=0.05)

job = brim.join(model, optimizer)
for batch in job.batches(train, global_batch_size=512, epochs=6):
    job.step(models.in_batch_softmax(model(batch.inputs), batch.target))

if job.rank == 0:
    with torch.no_grad():
        scores = model.users(ids) @ model.items(ids).T
    is_film = counts > 0
    print("hit rate", hit_rate(scores.masked_fill(~is_film, -torch.inf), train, test))
    print("by popularity", hit_rate(counts.float().repeat(len(ids), 1), train, test))
    print("weights", brim.weights_sha256(model))
