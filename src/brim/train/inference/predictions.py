"""Outputs of a model as columns, and the file with one row of them for every input row."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.csv as arrow_csv
import pyarrow.parquet as pq
import torch
from torch import Tensor

from brim.data import Columnar
from brim.data.sources import Source
from brim.data.tables import is_list
from brim.errors import EnvironmentFault, SpecError
from brim.storage.files import partial_of, sync_directory, sync_file

Indices = npt.NDArray[np.int64]
_HINT = "a function predict(output) in the training file may return a dict of tensors [rows]"


def output_columns(
    output: Any, function: Callable[[Any], Any] | None, rows: int
) -> dict[str, Tensor]:
    """The columns of a chunk, each [rows].

    Args:
        output: of the model.
        function: `predict` of the training file, which may return a tensor or a dict of them; None
            takes the output as it is.
        rows: samples of the chunk.

    Raises:
        SpecError: no tensors, or tensors that do not have a row for every sample.

    >>> list(output_columns(torch.zeros(2, 3), None, 2))
    ['output_0', 'output_1', 'output_2']
    """
    given_output = output if function is None else function(output)
    named = dict(given_output) if isinstance(given_output, Mapping) else {"output": given_output}
    subject = "the model's output" if function is None else "predict(output)"
    columns: dict[str, Tensor] = {}
    for name, tensor in named.items():
        if not isinstance(tensor, Tensor) or tensor.ndim not in (1, 2) or len(tensor) != rows:
            actual = (
                f"shape {list(tensor.shape)}"
                if isinstance(tensor, Tensor)
                else f"a {type(tensor).__name__}"
            )
            need = f"a tensor of shape [{rows}] or [{rows}, units], or a dict of them"
            raise SpecError(subject, got=actual, need=need, hint=_HINT)
        host = tensor.detach().cpu()
        host = host.float() if host.dtype is torch.bfloat16 else host
        if host.ndim == 2 and host.shape[1] != 1:
            columns |= {f"{name}_{unit}": part for unit, part in enumerate(host.unbind(1))}
        else:
            columns[str(name)] = host.reshape(rows)
    return columns


def pack(columns: Mapping[str, Tensor]) -> bytes:
    """Columns as the bytes of an Arrow stream."""
    batch = pa.record_batch({name: pa.array(tensor.numpy()) for name, tensor in columns.items()})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as stream:
        stream.write_batch(batch)
    content: bytes = sink.getvalue().to_pybytes()
    return content


@dataclass(frozen=True, slots=True)
class PredictedRows:
    """Consecutive rows of predictions.

    Args:
        total: rows here.
        places: int64, which of them have an output; the others were bad.
        kept: columns of the input, each as long as `total`.
    """

    total: int
    places: Indices
    kept: dict[str, pa.Array] = field(default_factory=dict)


class _Writer(Protocol):
    def write_table(self, table: pa.Table) -> None: ...

    def close(self) -> None: ...


def check_kept(source: Source, keep: Sequence[str], path: Path) -> None:
    """Raises SpecError where a file lacks a column to copy, or `path` cannot hold it."""
    source.check(keep)
    if source.typed is None or not _is_text(path):
        return
    first = next(source.read(keep, lists=keep))
    for name in keep:
        if is_list(first.column(name).column.type):
            raise SpecError(
                "--keep",
                got=f"{name!r}, a column of lists, and --output {path.name}",
                need="columns of numbers or text for a .csv",
                hint=f"--output {path.stem}.parquet",
            )


def rows_of(dataset: Columnar, *, keep: Sequence[str]) -> Iterable[PredictedRows]:
    """The rows of a dataset's files, the bad ones among them, part by part.

    Args:
        keep: columns of the files to copy.
    """
    files = dataset.source.read(keep, lists=keep) if keep else None
    for part in dataset.survey.parts:
        columns_kept: dict[str, pa.Array] = {}
        if files is not None:
            read = next(files)
            back = np.full(part.total, -1)
            back[part.places] = np.arange(part.size)
            indices = pa.array(back, mask=back < 0)
            columns_kept = {name: read.column(name).column.take(indices) for name in keep}
        yield PredictedRows(part.total, part.places[part.mask_of(None)], columns_kept)


def write_predictions(
    path: Path, rows: Iterable[PredictedRows], chunks: Iterator[bytes], *, job: str
) -> None:
    """Write one row for every row of the input, whole or not at all.

    Columns: `row` (from 0), those of the outputs, those that are kept. Rows without an output have
    nulls.

    Args:
        path: ends in .csv, or is a Parquet file.
        rows: what the outputs belong to, part by part.
        chunks: `pack`ed outputs of all good rows, in order.
        job: names the unfinished file, so that who takes over from a writer that died writes to the
            same.

    Raises:
        EnvironmentFault: the disk did not take it.
    """
    partial = partial_of(path, job)
    try:
        _write(partial, rows, _Outputs(chunks), text=_is_text(path))
        sync_file(partial)
        partial.replace(path)
        sync_directory(path.parent)
    except OSError as error:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
        raise EnvironmentFault(f"cannot write {path}: {error}") from error


def _is_text(path: Path) -> bool:
    return path.suffix == ".csv"


def _write(partial: Path, rows: Iterable[PredictedRows], outputs: _Outputs, *, text: bool) -> None:
    writer: _Writer | None = None
    start = 0
    for part in rows:
        table = _table(part, outputs.take(len(part.places)), start)
        start += part.total
        if writer is None:
            kind = arrow_csv.CSVWriter if text else pq.ParquetWriter
            writer = kind(partial, table.schema)
        writer.write_table(table)
    assert writer is not None, "a file has at least one part"
    writer.close()


def _table(part: PredictedRows, outputs: pa.Table, start: int) -> pa.Table:
    back = np.full(part.total, -1)
    back[part.places] = np.arange(len(part.places))
    indices = pa.array(back, mask=back < 0)
    columns: dict[str, Any] = {"row": pa.array(np.arange(start, start + part.total))}
    columns |= {name: outputs.column(name).take(indices) for name in outputs.column_names}
    return pa.table({**part.kept, **columns}).select([*columns, *part.kept])


class _Outputs:
    """The outputs of all good rows, taken in order."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks = (pa.ipc.open_stream(chunk).read_all() for chunk in chunks)
        self._rest: pa.Table | None = None

    def take(self, count: int) -> pa.Table:
        tables = [] if self._rest is None else [self._rest]
        while not tables or sum(table.num_rows for table in tables) < count:
            tables.append(next(self._chunks))
        whole = pa.concat_tables(tables)
        self._rest = whole.slice(count)
        return whole.slice(0, count)
