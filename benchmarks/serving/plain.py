"""The peer: plain torch behind starlette and uvicorn, as one writes it in an afternoon.

One request at a time.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from pathlib import Path

import torch
import uvicorn
from safetensors.torch import load_file
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from brim import models


class Plain:
    """The model of an export, with the tables by which it knows values."""

    def __init__(self, weights: Path, columns: Path) -> None:
        fit = json.loads(columns.read_text())["fits"][0]
        self.ids: dict[str, dict[str, int]] = {}
        self.moments: dict[str, tuple[float, float]] = {}
        offset = 0
        for column, fitted in zip(fit["columns"], fit["fitted"], strict=True):
            if "vocabulary" in column:
                values = fitted["values"]
                self.ids[column["vocabulary"][0]] = {
                    value: offset + id_ for id_, value in enumerate(values, 1)
                }
                offset += len(values) + 1
            else:
                self.moments[column["numeric"]] = fitted["moments"][:2]
        self.model = models.WideDeep(
            offset, len(self.ids), len(self.moments), dim=16, hidden=(256, 128)
        ).eval()
        self.model.load_state_dict(load_file(weights))

    @torch.inference_mode()
    def predict(self, rows: list[dict[str, object]]) -> list[float]:
        ids = [[table[str(row[name])] for name, table in self.ids.items()] for row in rows]
        numbers = [
            [
                (float(str(row[name])) - mean) / deviation
                for name, (mean, deviation) in self.moments.items()
            ]
            for row in rows
        ]
        output: list[float] = self.model(
            {"ids": torch.tensor(ids), "numbers": torch.tensor(numbers)}
        ).tolist()
        return output


def application(plain: Plain, *, threaded: bool) -> Starlette:
    """One handler.

    Args:
        threaded: compute in a thread, one request at a time, as a server does that is to go on
            answering.
    """
    lock = asyncio.Lock()

    async def predict(request: Request) -> JSONResponse:
        rows = (await request.json())["rows"]
        if not threaded:
            return JSONResponse({"output": plain.predict(rows)})
        async with lock:
            return JSONResponse({"output": await asyncio.to_thread(plain.predict, rows)})

    return Starlette(routes=[Route("/predict", predict, methods=["POST"])])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("weights", type=Path)
    parser.add_argument("columns", type=Path)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--threaded", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    app = application(Plain(arguments.weights, arguments.columns), threaded=arguments.threaded)
    uvicorn.run(app, port=arguments.port, log_level="warning", http="h11", lifespan="off")


if __name__ == "__main__":
    main()
