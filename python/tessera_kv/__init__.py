"""Tessera keeps KV caches outside the accelerator and moves them between inference engines.

This package holds the connector for vLLM (`tessera_kv.vllm`), the native part that does all the
work (`tessera_kv._native`), and the `tessera` binary. Importing it imports neither torch nor vllm.
"""

from tessera_kv._native import __version__

__all__ = ["__version__"]
