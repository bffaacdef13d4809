"""Metrics of some data, computed by all workers together and merged exactly.

The data is cut into chunks of a fixed size. A chunk's partial state depends on nothing but the
chunk, and the result on nothing but the states in their order: so the value is the same for any
number of workers.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from brim.coordination.job.reduction import share
from brim.data.batches import Collate
from brim.data.feed import Feed, MicroBatchRequest
from brim.data.streams import reads_differently
from brim.domain.batch import Span
from brim.domain.inference import chunks_of_step
from brim.domain.seeds import mix
from brim.errors import SpecError
from brim.tensors.chance import Sources
from brim.train.metrics import Metric
from brim.train.samples import pair_of, to_device

Forward = Callable[[nn.Module, Any], Any]
_EVALUATION = 1 << 40  # in the place of a step, where no step is


def feed_of(data: Any, *, seed: int, collate_fn: Collate | None = None) -> Feed:
    """Return the feed of metrics.

    Data in its order, or in that of a DataLoader, read by this process.

    Args:
        data: as `Job.batches` takes it.
        seed: of the job.
        collate_fn: turns a list of samples into a batch; None collates as torch does.
    """
    shuffle = None if isinstance(data, DataLoader) else False  # a DataLoader says it itself
    return Feed(data, seed=seed, shuffle=shuffle, collate_fn=collate_fn, loaders=0)


def evaluate_together(
    model: nn.Module,
    feed: Feed,
    metrics: Mapping[str, Metric],
    *,
    forward: Forward | None,
    size: int,
    seed: int,
    rank: int,
    world_size: int,
    gather: Callable[[bytes], list[bytes]],
    meanwhile: Callable[[], None],
) -> dict[str, float]:
    """The metrics over all samples of a feed.

    Args:
        forward: `forward(model, inputs)` gives the output; None calls `model(inputs)`.
        size: samples of a forward pass.
        seed: of the job.
        rank, world_size: which share of the chunks is this worker's.
        gather: gives everyone's payload, in rank order, for one's own.
        meanwhile: called with every chunk.
    """
    chunks = max(1, -(-feed.samples // size))
    spans = chunks_of_step(0, chunks, feed.samples, size=size)
    chunks_here = [(chunk, spans[chunk]) for chunk in share(chunks, world_size, rank)]
    with undisturbed(model) as put_back:
        seen = []
        for output, target, inputs in outputs(model, feed, chunks_here, forward=forward, seed=seed):
            seen.append(observe(metrics, output, target, inputs))
            put_back()
            meanwhile()
    answers = [
        msgspec.msgpack.decode(answer)
        for answer in gather(msgspec.msgpack.encode([seen, feed.digest()]))
    ]
    if len({digest for _, digest in answers}) > 1:
        raise reads_differently(feed.dataset, "different samples in different workers")
    return results(metrics, [state for states, _ in answers for state in states])


def outputs(
    model: nn.Module,
    feed: Feed,
    chunks: Sequence[tuple[int, Span]],
    *,
    forward: Forward | None,
    seed: int,
) -> Iterator[tuple[Any, Any, Any]]:
    """Yield the model's output for each chunk of samples, on the host, the target, and the inputs.

    The target is None where samples have none.

    A chunk's chance (a dataset may augment) follows from its number alone.
    """
    device = next((tensor.device for tensor in model.parameters()), torch.device("cpu"))
    sources = Sources(model)
    requests = (MicroBatchRequest(_EVALUATION, chunk, 0, span) for chunk, span in chunks)
    for read in feed.read(requests):
        inputs, target = pair_of(read.sample)
        sources.seed(mix(seed, _EVALUATION, read.request.micro))
        with torch.no_grad():
            on_device = to_device(inputs, device)
            output = model(on_device) if forward is None else forward(model, on_device)
        yield (output.cpu() if isinstance(output, Tensor) else output), target, inputs


@contextlib.contextmanager
def undisturbed(model: nn.Module) -> Iterator[Callable[[], None]]:
    """A model in eval mode; behind it every module has the mode and the buffers that it had before.

    Yields:
        What puts the buffers back at once: one chunk must not see what another left.
    """
    modes = [(module, module.training) for module in model.modules()]
    # Those of modules that change with the mode, as LoRA's layers merge matrices into their weights:
    # the way back rounds.
    changing = _tensors_of(
        (m for m, training in modes if training and type(m).train is not nn.Module.train),
        ("_parameters", "_buffers"),
    )
    model.eval()
    buffers = _tensors_of(model.modules(), ("_buffers",))

    def put_back() -> None:
        with torch.no_grad():
            for holder, name, tensor, copy in buffers:
                holder[name] = tensor
                if tensor is not None and copy is not None:
                    tensor.copy_(copy)

    try:
        yield put_back
    finally:
        put_back()
        for module, training in modes:  # those within others come later
            if module.training is not training:
                module.train(training)
        with torch.no_grad():
            for holder, name, tensor, copy in changing:
                if name not in holder or holder[name] is not tensor:
                    holder[name] = tensor
                if tensor is not None and copy is not None and not torch.equal(tensor, copy):
                    tensor.copy_(copy)


def _tensors_of(
    modules: Iterable[nn.Module], kinds: Sequence[str]
) -> list[tuple[dict[str, Any], str, Tensor | None, Tensor | None]]:
    """Return the places of modules' tensors, with the tensors and copies of them."""
    return [
        (holder, name, tensor, None if tensor is None else tensor.detach().clone())
        for module in modules
        for holder in (getattr(module, kind) for kind in kinds)
        for name, tensor in holder.items()
    ]


def observe(
    metrics: Mapping[str, Metric], output: Any, target: Any, inputs: Any
) -> dict[str, bytes]:
    """The partial state of each metric for one chunk.

    Raises:
        SpecError: a metric of brim cannot take this output and target. What one of the user's
            raises is theirs.
    """
    return {name: _observe_one(metric, output, target, inputs) for name, metric in metrics.items()}


def _observe_one(metric: Metric, output: Any, target: Any, inputs: Any) -> bytes:
    further = (inputs,) if getattr(metric, "takes_inputs", False) else ()
    try:
        return metric.observe(output, target, *further)
    except (ValueError, TypeError, RuntimeError) as error:
        if not type(metric).__module__.startswith("brim."):
            raise
        raise SpecError(
            "metrics()", got=str(error), need="metrics that fit the model's output"
        ) from error


def results(
    metrics: Mapping[str, Metric], states: Sequence[Mapping[str, bytes]]
) -> dict[str, float]:
    """The values over all chunks, whose states come in chunk order."""
    return {
        name: metric.result([state[name] for state in states]) for name, metric in metrics.items()
    }
