"""pytorch/examples, word_language_model as it is: columns of one long text, and a hidden state that
goes on.
"""

import sys

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import Dataset
from toys import sentences

import brim

WORDS, SIZE, COLUMNS, LENGTH = 12, 16, 24, 9
KIND = sys.argv[1] if len(sys.argv) > 1 else "lstm"


class Chunks(Dataset):
    """The text cut into columns, `batchify` there; a batch is one chunk of each column, `get_batch`
    there.
    """

    def __init__(self, text):
        self.columns = text.view(COLUMNS, -1)

    def __len__(self):
        return (self.columns.shape[1] - 1) // LENGTH * COLUMNS

    def __getitem__(self, index):
        chunk, column = divmod(index, COLUMNS)
        start = chunk * LENGTH
        text = self.columns[column, start : start + LENGTH + 1]
        return text[:-1], text[1:]


class RNNModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.drop = nn.Dropout(0.2)
        self.encoder = nn.Embedding(WORDS, SIZE)
        self.rnn = nn.LSTM(SIZE, SIZE, 2, dropout=0.2, batch_first=True)
        self.decoder = nn.Linear(SIZE, WORDS)
        self.decoder.weight = self.encoder.weight

    def forward(self, text, hidden):
        output, hidden = self.rnn(self.drop(self.encoder(text)), hidden)
        return self.decoder(self.drop(output)).flatten(0, 1), hidden

    def init_hidden(self, columns):
        return torch.zeros(2, columns, SIZE), torch.zeros(2, columns, SIZE)


torch.manual_seed(0)
model = RNNModel()
optimizer = torch.optim.SGD(model.parameters(), lr=2.0)
train = Chunks(sentences(COLUMNS * 5).flatten())

job = brim.join(model, optimizer, clip_norm=0.25)
job.carry("hidden", model.init_hidden(COLUMNS), dim=0 if KIND == "wrong_dimension" else 1)
for _ in job.epochs(2):
    for batch in job.batches(train, global_batch_size=COLUMNS, shuffle=KIND == "shuffled"):
        output, hidden = model(batch.inputs, batch.carried["hidden"])
        batch.carried["memory" if KIND == "misspelt" else "hidden"] = hidden
        loss = job.step(F.cross_entropy(output, batch.target.flatten()))
    job.log(loss=loss or 0.0)
