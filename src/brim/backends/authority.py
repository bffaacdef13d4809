"""The authority of a cluster, which is kept in the state directory of its scheduler."""

from __future__ import annotations

from pathlib import Path

from brim.errors import EnvironmentFault
from brim.host.untrusted import read_regular
from brim.storage.files import write_whole
from brim.wire.authority import Authority

AUTHORITY = "authority.pem"
_SCOPE = "cluster"
_MAX_FILE_BYTES = 1 << 16  # bytes of the file


def authority_of(state_dir: Path) -> Authority:
    """Return the authority of a state directory, which is made where there is none.

    Raises:
        OSError: the disk takes none.
        EnvironmentFault: its file holds no authority of a cluster.
    """
    path = state_dir / AUTHORITY
    try:
        authority = Authority.from_pem(read_regular(path, at_most=_MAX_FILE_BYTES))
        if authority.scope != _SCOPE:
            raise ValueError(f"it is the authority of {authority.scope or 'nothing'!r}")
    except FileNotFoundError:
        authority = Authority.make(_SCOPE)
        write_whole(path, authority.pem, mode=0o600, is_sole_writer=True)
    except (OSError, ValueError) as error:
        hint = (
            f"restore {path} from a backup, or move it away: then nodes join again, with the new "
            f"token in {state_dir / 'nodes.token'}, and tenants need new tokens"
        )
        reason = (error.strerror or error) if isinstance(error, OSError) else error
        raise EnvironmentFault(
            f"cannot use the authority in {path}: {reason}\n  hint: {hint}"
        ) from error
    return authority
