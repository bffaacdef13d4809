"""pytorch/examples, reinforcement_learning/actor_critic: rollouts are the data, two heads share a
body.
"""

import torch
from torch import nn
from torch.distributions import Categorical
from torch.nn import functional as F
from torch.utils.data import TensorDataset

import brim


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.affine1 = nn.Linear(4, 16)
        self.action_head, self.value_head = nn.Linear(16, 2), nn.Linear(16, 1)

    def forward(self, x):
        x = F.relu(self.affine1(x))
        return F.softmax(self.action_head(x), dim=-1), self.value_head(x).squeeze(-1)


torch.manual_seed(543)
states = torch.randn(
    120, 4
)  # of an environment whose reward is acting by the sign of the first number
model = Policy()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-2)

job = brim.join(model, optimizer)
for batch in job.batches(TensorDataset(states), global_batch_size=24, epochs=2):
    (state,) = batch.inputs
    probs, values = model(state)
    m = Categorical(probs)
    action = m.sample()  # chance in the loop, not in forward
    rewards = (action == (state[:, 0] > 0)).float()
    advantage = rewards - values.detach()
    loss = (
        -m.log_prob(action) * advantage + F.smooth_l1_loss(values, rewards, reduction="none")
    ).mean()
    job.step(loss)
