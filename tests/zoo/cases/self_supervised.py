"""facebookresearch/simsiam and moco: two views of a picture; a queue and a momentum encoder beside
the network.
"""

import copy

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import Dataset
from toys import images

from brim import param

KIND = param("kind", "simsiam")


class TwoViews(Dataset):
    def __init__(self, count):
        self.images = images(count).tensors[0]

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        first, second = (self.images[index] + 0.2 * torch.randn(1, 8, 8) for _ in range(2))
        return (first, second), 0


def backbone():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 16))


class SimSiam(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(backbone(), nn.BatchNorm1d(16, affine=False))
        self.predictor = nn.Sequential(
            nn.Linear(16, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 16)
        )

    def forward(self, views):
        z1, z2 = self.encoder(views[0]), self.encoder(views[1])
        p1, p2 = self.predictor(z1), self.predictor(z2)
        return p1, p2, z1.detach(), z2.detach()


def simsiam_loss(output, _):
    p1, p2, z1, z2 = output
    return -(F.cosine_similarity(p1, z2).mean() + F.cosine_similarity(p2, z1).mean()) / 2


class MoCo(nn.Module):
    """The queue is a buffer; the encoder of keys follows that of queries, in forward, as in the
    paper's code.

    `moco` keeps the encoder of keys as parameters without gradients, `moco_buffers` as buffers.
    """

    def __init__(self):
        super().__init__()
        self.encoder_q = backbone()
        self.encoder_k = copy.deepcopy(self.encoder_q)
        if KIND == "moco_buffers":
            for module in self.encoder_k.modules():
                for name, parameter in list(module.named_parameters(recurse=False)):
                    delattr(module, name)
                    module.register_buffer(name, parameter.detach())
        self.encoder_k.requires_grad_(False)
        self.register_buffer("queue", F.normalize(torch.randn(16, 32), dim=0))
        self.register_buffer("queue_ptr", torch.zeros(1, dtype=torch.long))

    @torch.no_grad()
    def _momentum_update_key_encoder(self):
        followed = zip(
            self.encoder_q.state_dict().values(), self.encoder_k.state_dict().values(), strict=True
        )
        for q, k in followed:
            k.mul_(0.9).add_(q, alpha=0.1)

    @torch.no_grad()
    def _dequeue_and_enqueue(self, keys):
        start = int(self.queue_ptr)
        places = torch.arange(start, start + len(keys)) % self.queue.shape[1]
        self.queue[:, places] = keys.T
        self.queue_ptr[0] = (start + len(keys)) % self.queue.shape[1]

    def forward(self, views):
        q = F.normalize(self.encoder_q(views[0]), dim=1)
        with torch.no_grad():
            if self.training:
                self._momentum_update_key_encoder()
            k = F.normalize(self.encoder_k(views[1]), dim=1)
        positive = (q * k).sum(1, keepdim=True)
        logits = torch.cat([positive, q @ self.queue.clone()], dim=1) / 0.07
        if self.training:
            self._dequeue_and_enqueue(k)
        return logits


def moco_loss(logits, _):
    return F.cross_entropy(logits, torch.zeros(len(logits), dtype=torch.long))


def model():
    return SimSiam() if KIND == "simsiam" else MoCo()


def dataset(split):
    return TwoViews(120 if split == "train" else 40)


loss = simsiam_loss if KIND == "simsiam" else moco_loss


def optimizer(model):
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return torch.optim.SGD(trained, lr=0.05, momentum=0.9, weight_decay=1e-4)
