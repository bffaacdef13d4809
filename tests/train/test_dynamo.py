"""Torch's compiler is loaded for every way of compiling, and never without it."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

from tiers import long_after

# Each way begins in a fork of one process, which has imported torch and not its compiler.
BEGIN = """
import sys
import torch
import torch.distributed as dist
from brim.worker import dynamo
from brim.train.state.optimization import Optimization

dynamo.defer()
model = torch.nn.Linear(4, 2)
optimizers = [
    kind(model.parameters(), lr=0.1)
    for kind in (torch.optim.SGD, torch.optim.Adam, torch.optim.Adagrad, torch.optim.RMSprop)
]


def train():
    for optimizer in optimizers:
        model(torch.ones(3, 4)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        optimizer.load_state_dict(optimizer.state_dict())
        optimizer.add_param_group({"params": [torch.nn.Parameter(torch.ones(2))]})


other = torch.nn.Linear(4, 1)
optimization = Optimization(other, [torch.optim.SGD(other.parameters(), lr=0.1)])
optimization.backward(other(torch.ones(3, 4)).mean(), 0.5, None)
assert torch.equal(other.weight.grad, torch.full((1, 4), 0.5))
train()
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
assert type(sys.modules[dynamo.NAME]) is not type(sys), "it has run"
assert "sympy" not in sys.modules
"""
WAYS = {
    "compiles": "assert torch.equal(torch.compile(model, backend='eager')(torch.ones(3, 4)), model(torch.ones(3, 4)))",
    "compiles a step": """
        model(torch.ones(3, 4)).sum().backward()
        before = model.weight.detach().clone()
        torch.compile(optimizers[0].step, backend="eager")()
        assert not torch.equal(model.weight, before)
    """,
    "imports a part": "import torch._dynamo.config as config; assert not config.suppress_errors",
    "imports a part of a part": """
        from torch._dynamo.backends.registry import lookup_backend
        assert callable(lookup_backend("eager"))
    """,
    "imports from it": "from torch._dynamo import config, explain, reset; reset()",
    "looks at its rules": """
        assert torch._dynamo.trace_rules.LEGACY_MOD_INLINELIST is not None
        import torch._dynamo.trace_rules as rules
        assert torch._dynamo.trace_rules is rules
    """,
    "imports all of it": "from torch._dynamo import *; assert callable(list_backends)",
    "keeps a function out": """
        @torch.compiler.disable
        def add(x):
            assert not torch.compiler.is_compiling()
            return x + 1
        assert torch.compile(lambda x: add(x) + 1, backend="eager")(torch.ones(())) == 3
    """,
    "makes a decorator": "assert torch._dynamo.disable(recursive=False)(len)([1]) == 1",
}
END = """
assert type(sys.modules[dynamo.NAME]) is type(sys)
assert torch._dynamo is sys.modules[dynamo.NAME]
for name, module in list(sys.modules.items()):
    if name.startswith(dynamo.NAME + "."):
        assert module.__spec__.name == name
        assert module.__spec__.loader.__class__.__module__ != dynamo.__name__
train()
"""


TRY = """
def try_out(way):
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    try:
        exec(way + end, {**globals(), "__name__": "__main__"})
        os._exit(0)
    except BaseException:
        traceback.print_exc()
        os._exit(1)


for name, way in ways.items():
    if try_out(way):
        sys.exit(f"who {name}")
"""


@pytest.mark.parametrize("names", long_after(1, [[*WAYS][:3], [*WAYS][3:]]))
def test_it_is_loaded_by_who_compiles(names: list[str]) -> None:
    ways = {name: textwrap.dedent(WAYS[name]).strip() for name in names}
    program = f"import os, traceback\nways = {ways!r}\nend = {END!r}\n"
    done = subprocess.run(
        [sys.executable, "-c", program + BEGIN + TRY],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
