"""The quarantine of bad rows.

It is one file of JSON lines per source file, written whole or not at all.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from brim.data.tables import BadRow
from brim.storage.files import write_whole


def write(run_directory: str, bad: Sequence[tuple[str, BadRow]]) -> Path | None:
    """Write each source file's bad rows to a file of its own.

    It is `quarantine/<file name>.jsonl` under the run's directory.

    Several processes may write the same rows at once: each writes a file of its own and renames it.

    Args:
        run_directory: the run's directory; empty writes nothing.
        bad: (source file, row) in the order of the dataset.

    Returns:
        The file written, or the folder where there are several, or None where nothing was written.
    """
    if not run_directory or not bad:
        return None
    by_file: dict[str, list[BadRow]] = defaultdict(list)
    for file, row in bad:
        by_file[file].append(row)
    folder = Path(run_directory) / "quarantine"
    folder.mkdir(parents=True, exist_ok=True)
    written = [_write(folder, _name(file, by_file), file, rows) for file, rows in by_file.items()]
    return written[0] if len(written) == 1 else folder


def _name(file: str, files: dict[str, list[BadRow]]) -> str:
    name = PurePosixPath(file).name
    namesakes = [file for file in files if PurePosixPath(file).name == name]
    return name if len(namesakes) == 1 else f"{name}.{namesakes.index(file) + 1}"


def _write(folder: Path, name: str, file: str, rows: Sequence[BadRow]) -> Path:
    final = folder / f"{name}.jsonl"
    records = [
        {
            "file": file,
            "line": row.line,
            "column": row.column,
            "text": row.text,
            "reason": row.reason,
        }
        for row in sorted(rows, key=lambda row: row.line)
    ]
    lines = (json.dumps(record, ensure_ascii=False) + "\n" for record in records)
    write_whole(final, "".join(lines).encode())
    return final
