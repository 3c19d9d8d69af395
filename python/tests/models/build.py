"""Builds the tiny fixed-seed models of `recipes.py` as real checkpoints, once per recipe.

Called by the demo and by the engine tests (`ensure`), and from a shell: `build.py [--cache FOLDER]
[NAME ...]` prints `NAME PATH` per model. A model lies under a folder named by the hash of its
recipe, appears there whole by one rename, and is never changed: a changed recipe is a new folder.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import sys
import tempfile
from pathlib import Path

import torch
from recipes import ALL, VOCABULARY, Recipe, Tensor
from safetensors.torch import save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit

GAIN = 1.2
DEFAULT_CACHE = Path.home() / ".cache" / "tessera" / "models"


def recipe_hash(recipe: Recipe) -> str:
    """Names the bytes that will be drawn: the recipe, and this file, which decides how."""
    digest = hashlib.sha256(Path(__file__).read_bytes())
    digest.update(repr(recipe).encode())
    return digest.hexdigest()[:16]


def draw(recipe: Recipe, tensor: Tensor) -> torch.Tensor:
    """Seeds by name, so that no tensor depends on the order in which the others are drawn."""
    dtype = getattr(torch, recipe.dtype)
    if tensor.fan_in is None:
        return torch.full(tensor.shape, tensor.constant, dtype=dtype)
    seed = hashlib.sha256(f"{recipe.name}/{tensor.name}{recipe.weights}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(seed[:7]))
    values = torch.randn(tensor.shape, generator=generator)
    return (values * (GAIN / tensor.fan_in**0.5)).to(dtype)


def save_tokenizer(folder: Path) -> None:
    """One word per id, so that a text prompt of `w17 w203` is exactly the tokens 17 and 203."""
    words = {f"w{index}": index for index in range(VOCABULARY)}
    tokenizer = Tokenizer(WordLevel(words, unk_token="w0"))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "w0"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


def write(recipe: Recipe, folder: Path) -> None:
    tensors = {tensor.name: draw(recipe, tensor) for tensor in recipe.tensors}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(recipe.config, indent=2))
    save_tokenizer(folder)


def ensure(name: str, cache: Path = DEFAULT_CACHE) -> Path:
    """Returns the folder of the model, building it first when it is not there yet."""
    recipe = ALL[name]()
    target = cache / recipe_hash(recipe) / recipe.name
    if target.is_dir():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=f".{name}-", dir=target.parent))
    try:
        write(recipe, staging)
        os.replace(staging, target)
    except OSError:
        # Two builders may race for one folder; both draw the same bytes, so either may win.
        if not target.is_dir():
            raise
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return target


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cache", type=Path, default=DEFAULT_CACHE)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(ALL)}")
    arguments = parser.parse_args()
    unknown = set(arguments.names) - set(ALL)
    if unknown:
        sys.exit(f"unknown model {', '.join(sorted(unknown))}; known are {', '.join(ALL)}")
    for name in arguments.names or ALL:
        print(name, ensure(name, arguments.cache), flush=True)


if __name__ == "__main__":
    main()
