"""The environment that jobs of a scheduler start from.

The environment has the variables that programs need to run, and no secrets.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from brim.domain.options import PORTS_VARIABLE
from brim.host.log import VARIABLE

# Where programs, libraries and people's files are, and how text is written. No proxy: it may
# contain a password.
_NAMES = frozenset(
    {
        *(
            "PATH",
            "HOME",
            "USER",
            "LOGNAME",
            "SHELL",
            "LANG",
            "LANGUAGE",
            "TZ",
            "TMPDIR",
            "TERM",
            "HOSTNAME",
            "BRIM_MACHINE",
            VARIABLE,
            PORTS_VARIABLE,
        ),
        *(
            "LD_LIBRARY_PATH",
            "LIBRARY_PATH",
            "LD_PRELOAD",
            "CC",
            "CXX",
            "VIRTUAL_ENV",
            "CONDA_PREFIX",
        ),
        *("SSL_CERT_FILE", "SSL_CERT_DIR", "XDG_CACHE_HOME", "XDG_DATA_HOME", "XDG_CONFIG_HOME"),
    }
)
# Of locales, of Python, and of the libraries that compute.
_FAMILIES = (
    *("LC_", "PYTHON", "OMP_", "KMP_", "GOMP_", "MKL_", "OPENBLAS_", "NUMEXPR_", "MALLOC_"),
    *(
        "CUDA_",
        "CUDNN_",
        "CUBLAS_",
        "NVIDIA_",
        "NCCL_",
        "GLOO_",
        "TORCH_",
        "TORCHINDUCTOR_",
        "PYTORCH_",
        "TRITON_",
    ),
)


def environment_of_jobs(
    variables: Mapping[str, str], declared: Mapping[str, str]
) -> dict[str, str]:
    """Return the environment that a scheduler, and so its jobs, are started with.

    Args:
        variables: the environment of the process that starts it.
        declared: variables that all jobs have in addition.

    >>> here = {"PATH": "/bin", "BRIM_MACHINE": "n7", "OMP_PROC_BIND": "1", "AWS_SECRET_ACCESS_KEY": "s"}
    >>> environment_of_jobs(here, {"HF_HOME": "/data"})
    {'PATH': '/bin', 'BRIM_MACHINE': 'n7', 'OMP_PROC_BIND': '1', 'HF_HOME': '/data'}
    """
    inherited = {
        name: value
        for name, value in variables.items()
        if name in _NAMES or name.startswith(_FAMILIES)
    }
    return {**inherited, **declared}


def keep_environment_of_jobs(declared: Mapping[str, str]) -> None:
    """Forget all variables that jobs should not have, however this process was started.

    Args:
        declared: variables that all jobs have in addition.
    """
    environment = environment_of_jobs(os.environ, declared)
    os.environ.clear()
    os.environ |= environment
