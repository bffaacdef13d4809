"""pytorch/examples, dcgan: a generator and a discriminator,
each with its optimizer and its losses.
"""

import torch
from torch import nn
from toys import images

import brim


def weights_init(m):
    if isinstance(m, nn.Conv2d | nn.ConvTranspose2d):
        nn.init.normal_(m.weight, 0.0, 0.02)


torch.manual_seed(0)
netG = nn.Sequential(
    nn.ConvTranspose2d(6, 8, 4, 1, 0, bias=False),
    nn.BatchNorm2d(8),
    nn.ReLU(True),
    nn.ConvTranspose2d(8, 1, 4, 2, 1, bias=False),
    nn.Tanh(),
)
netD = nn.Sequential(
    nn.Conv2d(1, 8, 4, 2, 1, bias=False),
    nn.LeakyReLU(0.2, inplace=True),
    nn.Conv2d(8, 1, 4, 1, 0, bias=False),
    nn.Sigmoid(),
    nn.Flatten(0),
)
netG.apply(weights_init)
netD.apply(weights_init)
criterion = nn.BCELoss()
optimizerD = torch.optim.Adam(netD.parameters(), lr=0.0002, betas=(0.5, 0.999))
optimizerG = torch.optim.Adam(netG.parameters(), lr=0.0002, betas=(0.5, 0.999))

job = brim.join([netG, netD], [optimizerG, optimizerD])
for batch in job.batches(images(120), global_batch_size=24, epochs=2):
    real = batch.inputs
    fake = netG(torch.randn(len(real), 6, 1, 1))
    ones, zeros = torch.ones(len(real)), torch.zeros(len(real))
    d_loss = criterion(netD(real), ones) + criterion(netD(fake.detach()), zeros)
    job.step(d_loss, optimizer=optimizerD)
    job.step(criterion(netD(fake), ones), optimizer=optimizerG)
