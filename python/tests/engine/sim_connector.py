"""The connector with a simulated device under its block memory, which a test orders faults from.

vLLM imports this module by name (`kv_connector_module_path`) in the engine's processes. It is the
shipped connector in all but one argument of its native worker: the memory of the host is said to
belong to a device whose writes show late. Each rank takes orders at a socket of its own, on a
thread of its own, since the model's thread may be what a fault holds.
"""

from __future__ import annotations

import json
import socket
import threading
from typing import Any

from tessera_kv import _native
from tessera_kv.vllm.connector import TesseraConnector


class SimDeviceConnector(TesseraConnector):
    """The connector of an engine whose `additional_config` names the place of the sockets."""

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        """Put the device under a worker's memory, before that is registered."""
        super().__init__(vllm_config, role, kv_cache_config)
        if self._worker is not None:
            rank = vllm_config.parallel_config.rank
            device = self._worker.device = _native.SimDevice(rank)
            listener = socket.socket(socket.AF_UNIX)
            listener.bind(f"{vllm_config.additional_config['sim_device']}.{rank}")
            listener.listen()
            threading.Thread(target=take_orders, args=(listener, device), daemon=True).start()


def take_orders(listener: socket.socket, device: _native.SimDevice) -> None:
    """Calls the device as the one test says that connects, and answers what it returned."""
    with listener.accept()[0] as connection:
        for line in connection.makefile():
            name, *arguments = json.loads(line)
            answer = getattr(device, name)(*arguments)
            connection.sendall((json.dumps(answer) + "\n").encode())
