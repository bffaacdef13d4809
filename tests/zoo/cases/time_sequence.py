"""pytorch/examples, time_sequence_prediction: two LSTM cells in float64, trained by LBFGS as there
or by Adam.
"""

import torch
from torch import nn
from torch.utils.data import TensorDataset

from brim import param


class Sequence(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm1 = nn.LSTMCell(1, 8)
        self.lstm2 = nn.LSTMCell(8, 8)
        self.linear = nn.Linear(8, 1)

    def forward(self, wave):
        h_t, c_t = wave.new_zeros(len(wave), 8), wave.new_zeros(len(wave), 8)
        h_t2, c_t2 = torch.zeros_like(h_t), torch.zeros_like(c_t)
        outputs = []
        for value in wave.split(1, dim=1):
            h_t, c_t = self.lstm1(value, (h_t, c_t))
            h_t2, c_t2 = self.lstm2(h_t, (h_t2, c_t2))
            outputs.append(self.linear(h_t2))
        return torch.cat(outputs, dim=1)


def model():
    return Sequence().double()


def dataset(split):
    phase = torch.arange(96, dtype=torch.float64).unsqueeze(1)
    wave = torch.sin(torch.arange(9, dtype=torch.float64) / 3 + phase)
    return TensorDataset(wave[:, :-1], wave[:, 1:])


loss = nn.functional.mse_loss


def optimizer(model):
    if param("optimizer", "lbfgs") == "lbfgs":
        return torch.optim.LBFGS(model.parameters(), lr=0.8)
    return torch.optim.Adam(model.parameters(), lr=1e-2)
