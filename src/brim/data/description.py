"""Data that a user passes (a dataset, a DataLoader, a stream), described in one way.

Indescribable data is refused in words.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    default_collate,
)
from torch.utils.data.distributed import DistributedSampler

from brim.data.batches import Collate
from brim.data.orders import AsTheyLie, Drawn, Order, Shuffled
from brim.data.sized_stream import SizedStream, is_stream
from brim.domain.quantities import counted
from brim.errors import SpecError

# Beside torch's DataLoader these only count what they gave, to go on from there; so does brim.
_COUNT_ONLY = (
    "torchdata.stateful_dataloader.", "streaming.base.dataloader", "speechbrain.dataio.dataloader"
)  # fmt: skip
# What yields whole batches, by its package and its name, with what to pass instead.
_OF_BATCHES = {
    ("webdataset", "WebLoader"): "the dataset that it loads, without .batched(…)",
    ("webdataset", "_batched"): "the pipeline without .batched(…)",
    ("fastai", "DataLoader"): "a TensorDataset of the numbers that it gives",
    ("fastai", "DataLoaders"): "a TensorDataset of the numbers that its train loader gives",
    ("torchdata", "Batcher"): "torchdata.nodes.Loader(node) of the node before the Batcher",
    ("grain", "DataLoader"): "its data source",
    ("nvidia", "DALIGenericIterator"): "a Dataset that reads single samples",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """The way in which a user's data is to be read.

    Args:
        dataset: map-style, or a stream (`streams`): something that is iterated again for each
            epoch.
        order: of an epoch.
        samples: positions of an epoch that are used.
        batch_size: samples per step, or None where unset.
        collate: makes a list of samples one; None collates as torch does.
        shards: that a stream is read in, or None for one iteration.
        loaders: processes that read beside the step, or None where unset.
        ahead: micro-batches that each of them may be ahead.
        loader_init: called in each with its number.
    """

    dataset: Any
    streams: bool
    order: Order
    samples: int
    batch_size: int | None
    collate: Collate | None
    shards: int | None = None
    loaders: int | None = None
    ahead: int = 2
    loader_init: Callable[[int], Any] | None = None


def describe(
    data: Any,
    *,
    seed: int,
    global_batch_size: int | None = None,
    shuffle: bool | None = None,
    sampler: Iterable[int] | None = None,
    collate_fn: Collate | None = None,
    samples: int | None = None,
    shards: int | None = None,
) -> Description:
    """See `Feed` for the arguments.

    Raises:
        SpecError: this is no data, or cannot be read exactly.
    """
    inner = data.dataset if isinstance(data, DataLoader) else data
    _refuse_batches(inner.dataset if isinstance(inner, SizedStream) else inner)
    if isinstance(inner, SizedStream):
        samples = _said_once("samples", samples, inner.samples)
        shards = _said_once("shards", shards, inner.shards)
    if isinstance(data, DataLoader):
        options = {"shuffle=": shuffle, "sampler=": sampler, "collate_fn=": collate_fn}
        _refuse_beside_a_loader([name for name, value in options.items() if value is not None])
        return _cut(
            _of_a_loader(data, seed=seed, global_batch_size=global_batch_size, samples=samples),
            shards,
        )
    order = _order(data, seed=seed, shuffle=shuffle, sampler=sampler, samples=samples)
    description = Description(
        dataset=data,
        streams=order.kind == "stream",
        order=order,
        samples=order.samples,
        batch_size=global_batch_size,
        collate=collate_fn,
        loaders=data.loaders if isinstance(data, SizedStream) else None,
    )
    return _cut(description, shards)


def _refuse_batches(data: Any) -> None:
    """Raises SpecError where samples are known to be whole batches."""
    # torchdata's loaders have a node as their root, WebDataset's pipelines functions as stages.
    pipeline = getattr(data, "pipeline", None)
    stages = [
        getattr(stage, "f", None) for stage in (pipeline if isinstance(pipeline, list) else ())
    ]
    kinds = [*type(data).__mro__, type(getattr(data, "root", None)), *stages]
    for kind in kinds:
        package = str(getattr(kind, "__module__", "")).partition(".")[0]
        hint = _OF_BATCHES.get((package, str(getattr(kind, "__name__", ""))))
        if hint is not None:
            raise SpecError(
                type(data).__name__,
                got="something that yields whole batches",
                need="single samples: brim cuts each batch into micro-batches",
                hint=f"pass {hint}",
            )
    is_read_by_place = isinstance(data, Dataset) or hasattr(data, "__getitem__")
    if not is_read_by_place and (name := _wrapped_loader(data)):
        raise SpecError(
            type(data).__name__,
            got="something that yields the batches of a DataLoader",
            need="single samples: brim cuts each batch into micro-batches",
            hint=f"pass the DataLoader itself (its attribute {name!r}), and wrap job.batches(...)",
        )


def _wrapped_loader(data: Any) -> str:
    """Return the attribute in which something keeps the DataLoader that it reads; empty if none.

    Progress bars and prefetchers are of this kind.
    """
    attributes = getattr(data, "__dict__", {})
    return next((name for name, value in attributes.items() if _gives_batches(value)), "")


def _gives_batches(loader: Any) -> bool:
    """Return whether this is a DataLoader of batches: with `batch_size=None` one gives samples."""
    return isinstance(loader, DataLoader) and loader.batch_sampler is not None


def _said_once(name: str, in_loop: int | None, in_stream: int | None) -> int | None:
    """Return the one value of a number that `job.batches` and `brim.data.stream` may both give."""
    if in_loop is not None and in_stream is not None and in_loop != in_stream:
        raise SpecError(
            f"job.batches({name}=)",
            got=f"{in_loop}, and {name}={in_stream} of brim.data.stream",
            need="it in one place",
        )
    return in_stream if in_loop is None else in_loop


def _cut(description: Description, shards: int | None) -> Description:
    """The same, read in so many shards."""
    if isinstance(description.dataset, SizedStream):
        description = replace(description, dataset=description.dataset.dataset)
    if shards is None:
        return description
    if shards < 1:
        raise SpecError("shards", got=str(shards), need="a whole number from 1")
    if not description.streams:
        raise SpecError(
            "shards",
            got=f"shards={shards} for a dataset that is read by index",
            need="shards= with a stream alone: of other data each worker reads its own samples in "
            "any case",
        )
    for field, size in (
        ("global_batch_size", description.batch_size),
        ("samples", description.samples),
    ):
        if size is not None and size % shards:
            raise SpecError(
                field,
                got=f"{size:,} and shards={shards}",
                need=f"a multiple of {shards}: each shard gives each step an equal part",
                hint=f"{field}={size // shards * shards or shards}",
            )
    files = getattr(description.dataset, "num_shards", None)  # of Hugging Face
    if isinstance(files, int) and files < shards:
        raise SpecError(
            "shards",
            got=f"shards={shards} of a stream that has {files}",
            need=f"at most {files}",
            hint=f"shards={files}",
        )
    return replace(description, shards=shards)


# DataLoaders --------------------------------------------------------------------------------------


def _refuse_beside_a_loader(options: list[str]) -> None:
    if options:
        raise SpecError(
            options[0].removesuffix("="),
            got=f"{' and '.join(options)} beside a DataLoader",
            need="it in one place",
            hint=f"DataLoader(dataset, {options[0]}…), or the dataset itself without a DataLoader",
        )


def _of_a_loader(
    loader: DataLoader[Any], *, seed: int, global_batch_size: int | None, samples: int | None
) -> Description:
    _refuse_odd_loaders(loader)
    sampler, batch_size, drop_last = _parts(loader)
    if global_batch_size not in (None, batch_size):
        raise SpecError(
            "global_batch_size",
            got=f"{global_batch_size}, and a DataLoader with batch_size={batch_size}",
            need="one number of samples per step",
            hint=f"DataLoader(…, batch_size={global_batch_size}), or leave global_batch_size out",
        )
    if isinstance(loader.dataset, IterableDataset):
        sampler = None  # torch gives streams one that says nothing
    order = _order(loader.dataset, seed=seed, shuffle=None, sampler=sampler, samples=samples)
    used = order.samples // batch_size * batch_size if drop_last else order.samples
    if order.samples and not used:
        raise SpecError(
            "DataLoader(drop_last=True)",
            got=f"{counted(order.samples, 'sample')}, fewer than a batch of {batch_size}",
            need="at least one whole batch",
            hint=f"batch_size={order.samples}",
        )
    return Description(
        dataset=loader.dataset,
        streams=order.kind == "stream",
        order=order,
        samples=used,
        batch_size=batch_size,
        collate=None if loader.collate_fn is default_collate else loader.collate_fn,
        loaders=loader.num_workers,
        ahead=loader.prefetch_factor or 2,
        loader_init=loader.worker_init_fn,
    )


def _refuse_odd_loaders(loader: DataLoader[Any]) -> None:
    counts_only = type(loader).__module__.startswith(_COUNT_ONLY)
    if type(loader).__iter__ is not DataLoader.__iter__ and not counts_only:
        raise SpecError(
            type(loader).__name__,
            got="a DataLoader with its own __iter__",
            need="torch's DataLoader, or a dataset: brim reads the samples of each micro-batch "
            "itself",
            hint="pass its dataset: loader.dataset"
            if loader.collate_fn is default_collate
            else "DataLoader(loader.dataset, collate_fn=loader.collate_fn)",
        )
    context = loader.multiprocessing_context
    if context is not None and context.get_start_method() != "fork":
        raise SpecError(
            "DataLoader(multiprocessing_context=)",
            got=repr(context.get_start_method()),
            need="'fork' or none: brim forks the processes that read",
            hint="num_workers=0 reads in the step",
        )


def _parts(loader: DataLoader[Any]) -> tuple[Any, int, bool]:
    """Return the loader's sampler, its batch size, and whether it drops the last batch."""
    batches: Any = loader.batch_sampler
    if batches is None:
        raise SpecError(
            "DataLoader(batch_size=None)",
            got="a DataLoader whose dataset makes the batches",
            need="one whose dataset gives single samples: brim cuts each batch into micro-batches",
            hint="DataLoader(dataset, batch_size=512), where dataset[i] is sample i without a dimension "
            "of the batch",
        )
    if loader.batch_size is None and type(batches) is not BatchSampler:
        raise SpecError(
            f"batch_sampler {type(batches).__name__}",
            got="a sampler that makes batches of its own",
            need="one that draws single samples: brim cuts each batch into micro-batches",
            hint="DataLoader(dataset, batch_size=512, sampler=…)",
        )
    return batches.sampler, batches.batch_size, batches.drop_last


# Orders -------------------------------------------------------------------------------------------


def _order(
    data: Any, *, seed: int, shuffle: bool | None, sampler: Any, samples: int | None
) -> Order:
    if is_stream(data):
        return _order_of_a_stream(data, shuffle=shuffle, sampler=sampler, samples=samples)
    size = _size(data)
    if samples not in (None, size):
        raise SpecError(
            "samples",
            got=f"{samples:,} for a dataset that has {size:,}",
            need="samples= only with a stream",
            hint=f"torch.utils.data.Subset(dataset, range({samples}))",
        )
    if sampler is not None and shuffle is not None:
        raise SpecError("shuffle", got="shuffle= beside sampler=", need="one of them")
    if sampler is not None:
        return _order_of_a_sampler(data, size, sampler, seed=seed)
    return AsTheyLie("sequential", size) if shuffle is False else _shuffled(data, size, seed)


def _shuffled(data: Any, size: int, seed: int) -> Order:
    return Shuffled(seed=seed, size=size, block_size=int(getattr(data, "block_size", 1)))


def _order_of_a_sampler(data: Any, size: int, sampler: Any, *, seed: int) -> Order:
    if isinstance(sampler, DistributedSampler):
        raise SpecError(
            "DistributedSampler",
            got="a sampler that cuts the data by rank",
            need="none: brim gives each worker its part of every batch",
            hint="DataLoader(dataset, shuffle=True)",
        )
    if isinstance(sampler, BatchSampler):
        raise SpecError(
            "sampler",
            got=f"a {type(sampler).__name__}, which draws batches",
            need="one that draws single samples: brim cuts each batch into micro-batches",
            hint="sampler=sampler.sampler, global_batch_size=sampler.batch_size",
        )
    if type(sampler) is SequentialSampler:
        return AsTheyLie("sequential", size)
    if type(sampler) is RandomSampler and not sampler.replacement and sampler.num_samples == size:
        return _shuffled(data, size, seed)
    return Drawn(sampler, size=size, seed=seed)


def _order_of_a_stream(
    data: Any, *, shuffle: bool | None, sampler: Any, samples: int | None
) -> Order:
    if shuffle or sampler is not None:
        raise SpecError(
            "shuffle" if shuffle else "sampler",
            got="a stream, whose samples come in a fixed order",
            need="a map-style dataset (__len__ and __getitem__), or a stream that shuffles itself",
        )
    if hasattr(data, "__next__"):
        if type(data).__module__.startswith("torchdata.nodes."):
            hint = "torchdata.nodes.Loader(node)"
        elif hasattr(data, "__getitem__") and _length(data):  # litdata's
            hint = "read it by index: torch.utils.data.Subset(dataset, range(len(dataset)))"
        else:
            hint = "a torch.utils.data.IterableDataset with __iter__"
        raise SpecError(
            "data",
            got=f"a {type(data).__name__}, which can be read only once",
            need="something that can be iterated again for each epoch",
            hint=hint,
        )
    count = samples if samples is not None else _length(data)
    if count is None:
        raise SpecError(
            type(data).__name__,
            got="a stream that does not say how many samples an epoch has",
            need="samples=, or __len__",
            hint="job.batches(stream, samples=100_000, global_batch_size=512), or in a training "
            "file return "
            "brim.data.stream(stream, samples=100_000)",
        )
    if count < 1:
        raise SpecError("samples", got=str(count), need="a whole number from 1")
    return AsTheyLie("stream", count)


def _size(data: Any) -> int:
    """Samples of a map-style dataset."""
    if isinstance(data, Mapping) and not hasattr(data, "__getitems__"):
        names = [*data.keys()] or ["train"]
        raise SpecError(
            "data",
            got=f"a {type(data).__name__} of {', '.join(map(repr, names[:4]))}",
            need="one dataset",
            hint=f"data[{names[0]!r}]",
        )
    size = (
        _length(data)
        if hasattr(data, "__getitem__") and not isinstance(data, (str, bytes))
        else None
    )
    if size is None:
        raise SpecError(
            "data",
            got=f"a {type(data).__name__}",
            need="a DataLoader, a stream, or a dataset with __len__ and __getitem__",
            hint="torch.utils.data.TensorDataset(inputs, targets)",
        )
    return size


def _length(data: Any) -> int | None:
    try:
        return len(data)
    except (TypeError, NotImplementedError):
        return None
