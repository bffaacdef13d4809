"""Opens the text files that people hand to the simulator, with errors for unreadable ones."""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, cast

from brim.errors import NO_SUCH_FILE, SpecError
from brim.storage.files import nearby

_GZIP = b"\x1f\x8b"


@contextmanager
def opened(path: Path, *, option: str, need: str, hint: str) -> Iterator[io.TextIOWrapper]:
    """A text in UTF-8, compressed by gzip or not, without the mark that some programs put first.

    Ends of lines are as they are in the file.

    Args:
        option: that named the file, for messages.
        need: the kind of file, such as `a CSV file`.
        hint: where the format is described.

    Raises:
        SpecError: no such file, or one that is no text, also where that shows later.
    """
    try:
        with path.open("rb") as raw:
            compressed = raw.read(2) == _GZIP
            raw.seek(0)
            content = cast("IO[bytes]", gzip.GzipFile(fileobj=raw)) if compressed else raw
            with io.TextIOWrapper(content, encoding="utf-8-sig", newline="") as text:
                yield text
            return
    except FileNotFoundError:
        similar_path = nearby(path)
        hint = similar_path if similar_path.startswith("did") else hint
        actual = f"{path}: {NO_SUCH_FILE}"
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        actual, need = f"{path}, whose compression is broken ({error})", "a whole file"
    except OSError as error:
        actual, need = f"{path} ({error.strerror})", "a file that can be read"
    except UnicodeDecodeError:
        actual, need = f"{path}, which is not text in UTF-8", f"{need} in UTF-8"
    raise SpecError(option, got=actual, need=need, hint=hint)
