"""The kind of this host is the same as torch says, read without torch."""

from __future__ import annotations

import subprocess
import sys

import torch

import brim
from brim.host.own_kind import kind_of_this_host


def test_it_is_what_torch_says() -> None:
    kind = kind_of_this_host({"MKL_CBWR": "AVX2", "HOME": "/"})
    assert kind.torch.startswith(f"{torch.__version__} (build ")
    assert kind.capability == torch.backends.cpu.get_cpu_capability()
    assert kind.brim == brim.__version__
    assert kind.python == ".".join(map(str, sys.version_info[:2]))
    assert kind.cpu
    assert kind.instructions
    assert kind.settings == {"MKL_CBWR": "AVX2"}
    assert kind_of_this_host({"ATEN_CPU_CAPABILITY": "default"}).capability == "DEFAULT"


def test_torch_is_not_imported_for_it() -> None:
    code = "import sys; from brim.host.own_kind import kind_of_this_host as k; k(); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
