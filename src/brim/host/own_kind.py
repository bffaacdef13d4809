"""The kind of this host, read without importing torch."""

from __future__ import annotations

import ast
import importlib.metadata
import importlib.util
import os
import platform
from collections.abc import Mapping
from pathlib import Path

import brim
from brim.domain.host_kind import HostKind

_CPU = Path("/proc/cpuinfo")
_GPUS = Path("/proc/driver/nvidia/gpus")
# By which oneDNN and MKL choose kernels, as /proc/cpuinfo has them: of x86, then of Arm.
_INSTRUCTIONS = frozenset(
    (
        *("sse4_1", "avx", "avx2", "fma", "avx_vnni", "avx_ifma", "avx_ne_convert", "avx10"),
        *("avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_vnni", "avx512_bf16"),
        *("avx512_fp16", "amx_tile", "amx_int8", "amx_bf16", "amx_fp16"),
        *("asimd", "asimdhp", "asimddp", "fphp", "bf16", "i8mm", "sve", "sve2", "svebf16", "svei8mm"),
    )
)  # fmt: skip
_SETTINGS = (
    *("ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA", "MKL_CBWR"),
    *("MKL_ENABLE_INSTRUCTIONS", "ONEDNN_DEFAULT_FPMATH_MODE", "DNNL_DEFAULT_FPMATH_MODE"),
    *("OPENBLAS_CORETYPE", "NVIDIA_TF32_OVERRIDE", "CUBLAS_WORKSPACE_CONFIG"),
)


def kind_of_this_host(environment: Mapping[str, str] = os.environ) -> HostKind:
    """Return the kind of this host; unreadable facts are empty."""
    cpu = _fields(_text(_CPU))
    flags = {*cpu.get("flags", "").split(), *cpu.get("Features", "").split()}
    torch = _torch()
    cuda = torch.get("cuda", "").partition(".")[0]
    return HostKind(
        python=platform.python_version().rpartition(".")[0],
        brim=brim.__version__,
        torch=_described(torch),
        cpu=_name_of(cpu),
        capability=capability(flags, environment.get("ATEN_CPU_CAPABILITY", "")),
        instructions=tuple(sorted(flags & _INSTRUCTIONS)),
        gpus=tuple(sorted({_fields(_text(gpu)).get("Model", "") for gpu in _gpus()})),
        cudnn=_version(f"nvidia-cudnn-cu{cuda}") if cuda else "",
        settings={name: environment[name] for name in _SETTINGS if name in environment},
    )


def capability(flags: set[str], preferred: str = "") -> str:
    """Return the level by which torch chooses its own kernels, as it does.

    Args:
        flags: of the processor.
        preferred: the variable ATEN_CPU_CAPABILITY, which it obeys.

    >>> capability({"avx2", "fma"}), capability({"avx2"}), capability({"avx2"}, "avx512")
    ('AVX2', 'DEFAULT', 'AVX512')
    """
    if preferred in ("avx512", "avx2", "default", "sve256", "vsx", "zvector"):
        return preferred.upper()
    if {"avx512vl", "avx512bw", "avx512dq", "fma"} <= flags:
        return "AVX512"
    if {"avx2", "fma"} <= flags:
        return "AVX2"
    return "DEFAULT"


def _torch() -> dict[str, str]:
    """The literals of torch's file of its version."""
    found = importlib.util.find_spec("torch")
    places = found.submodule_search_locations if found else None
    text = _text(Path(next(iter(places)), "version.py")) if places else ""
    literals: dict[str, str] = {}
    for node in ast.parse(text).body:
        match node:
            case (
                ast.Assign(targets=[ast.Name(id=name)], value=ast.Constant(value=str(value)))
                | ast.AnnAssign(target=ast.Name(id=name), value=ast.Constant(value=str(value)))
            ):
                literals[name] = value
            case _:
                pass
    return literals


def _described(torch: Mapping[str, str]) -> str:
    version = torch.get("__version__", "")
    build = torch.get("git_version", "")[:8]
    return f"{version} (build {build})" if build else version


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _name_of(cpu: Mapping[str, str]) -> str:
    """The processor in words, down to its kernels and caches."""
    if "vendor_id" in cpu:
        return f"{cpu['vendor_id']} {cpu.get('cpu family', '')}/{cpu.get('model', '')}"
    if "CPU implementer" in cpu:
        return f"{platform.machine()} {cpu['CPU implementer']}/{cpu.get('CPU part', '')}"
    return platform.machine()


def _gpus() -> list[Path]:
    try:
        return [device / "information" for device in _GPUS.iterdir()]
    except OSError:
        return []


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def _fields(text: str) -> dict[str, str]:
    """The first value of each `name : value` line."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        name, colon, value = line.partition(":")
        if colon:
            found.setdefault(name.strip(), value.strip())
    return found
