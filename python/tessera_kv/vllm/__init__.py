"""The connector for vLLM, and its registration.

vLLM calls `register` in every process through the entry point `vllm.general_plugins`, so that
`"kv_connector": "TesseraConnector"` needs no module path. Nothing else is imported here: a process
that does not use the connector pays nothing, and an engine that is too old gets a message instead
of a failed import.
"""

from __future__ import annotations

NAME = "TesseraConnector"

# The first engine with `get_transfer_results` and `failed_recving` through all its layers.
OLDEST_ENGINE = (0, 30)


class UnsupportedEngineError(RuntimeError):
    """The engine, as it is installed or configured, cannot run with Tessera. Says what to do."""


def register() -> None:
    """Make the connector known to vLLM. May be called any number of times."""
    from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory

    if NAME not in KVConnectorFactory._registry:
        KVConnectorFactory.register_connector(NAME, "tessera_kv.vllm.connector", NAME)


def require_engine(version: str) -> tuple[int, int]:
    """Refuse an engine older than `OLDEST_ENGINE`; answer its version without the patch number.

    A version that is not a number (a build from source) is taken as new: what is missing shows
    when the connector is imported.
    """
    parts = version.lstrip("v").split(".")
    try:
        major, minor = int(parts[0]), int(parts[1])
    except (IndexError, ValueError):
        return OLDEST_ENGINE
    # A checkout without tags calls itself 0.0 or 0.1.dev.
    if (major, minor) < OLDEST_ENGINE and "dev" not in version:
        wanted = ".".join(map(str, OLDEST_ENGINE))
        raise UnsupportedEngineError(
            f"Tessera needs vLLM {wanted} or later, and this is {version}: "
            f"pip install 'vllm>={wanted}'"
        )
    return major, minor
