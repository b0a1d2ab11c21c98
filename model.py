"""The networks: a policy (causal language model + value head on the same backbone), its frozen copy, loading and saving.

One forward gives logits and values. A checkpoint is an ordinary Hugging Face directory (so that
`AutoModelForCausalLM.from_pretrained(dir)` loads the policy) with `value_head.safetensors` beside it, and with LoRA the
folder `adapter/`, in PEFT's format, of what the directory has merged.

Letters: B episodes, T tokens, V vocabulary, D hidden.
"""

import copy
import json
import os
from pathlib import Path

import torch
import transformers
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    PretrainedConfig,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
)

import lora

VALUE_HEAD_FILE = "value_head.safetensors"
ADAPTER_DIR = "adapter"
CONTEXT_TOK = {"tiny": 2048, "smollm2": 8192}  # of the models that are known by a name


class Policy(nn.Module):
    """Language model and value head over one backbone.

    Always in eval mode: dropout would make the log-probabilities of the update differ from those of the sampler.
    With bf16 matrices are multiplied in bfloat16; weights that are trained, sums of the residual stream, norms, the value
    head and all losses stay fp32.
    """

    def __init__(self, lm: nn.Module, tokenizer):
        super().__init__()
        self.lm, self.tokenizer, self.bf16 = lm, tokenizer, False
        # Zero at the start: the first prediction is the mean of the first batch of returns (ppo.update_value_statistics).
        self.value_head = nn.Linear(lm.config.hidden_size, 1)
        nn.init.zeros_(self.value_head.weight)
        nn.init.zeros_(self.value_head.bias)
        # The head predicts normalised returns: V = value_mean + value_std * head.
        self.register_buffer("value_mean", torch.zeros(()))
        self.register_buffer("value_std", torch.ones(()))
        self.eval()

    def forward(self, tokens: torch.Tensor, *, detach_value: bool = False, **lm_inputs):
        """Return logits (B, T, V) and normalised values (B, T) at every position of tokens (B, T).

        Position t predicts token t+1. `detach_value` stops the value gradient at the backbone; `lm_inputs` (cache,
        attention_mask, position_ids) go to the language model as they are.
        """
        with self.autocast():
            hidden = self.lm.base_model(tokens, **{"use_cache": False, **lm_inputs}).last_hidden_state  # (B, T, D)
            logits = self.lm.get_output_embeddings()(hidden)  # (B, T, V)
        value_input = hidden.detach() if detach_value else hidden
        values = self.value_head(value_input.float()).squeeze(-1)  # (B, T)
        return logits, values

    def autocast(self) -> torch.autocast:
        """Return the context to compute in. Weights are converted at each use: a cache would hold all of them twice."""
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.bf16, cache_enabled=False)

    @property
    def device(self) -> torch.device:
        return self.value_head.weight.device

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """Token ids that end a response: those of the generation config, and the tokenizer's end of sequence."""
        configured = self.lm.generation_config.eos_token_id
        ids = configured if isinstance(configured, list) else [configured]
        return tuple(sorted({i for i in [*ids, self.tokenizer.eos_token_id] if i is not None}))


def build_tiny(tokenizer: PreTrainedTokenizerFast, seed: int) -> Policy:
    """Build an untrained Qwen2-architecture policy of about 1 M parameters for the given tokenizer."""
    special = {f"{name}_token_id": getattr(tokenizer, f"{name}_token_id") for name in ("bos", "eos", "pad")}
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return Policy(Qwen2ForCausalLM(tiny_config(len(tokenizer), **special)), tokenizer)


def tiny_config(vocabulary: int, **special_tokens) -> Qwen2Config:
    return Qwen2Config(
        vocab_size=vocabulary, hidden_size=128, intermediate_size=448, num_hidden_layers=4, num_attention_heads=4,
        # a key-value head per query head: with one for all, names are not copied and twice as many programs fail at the start
        num_key_value_heads=4, max_position_embeddings=CONTEXT_TOK["tiny"], tie_word_embeddings=True, nanomle_kind="tiny",
        **special_tokens,
    )  # fmt: skip


def cache_dir() -> Path:
    """Return the folder of every cache: $NANOMLE_CACHE, else ~/.cache/nanomle."""
    return Path(os.environ.get("NANOMLE_CACHE") or Path.home() / ".cache" / "nanomle")


def model_kind(name_or_dir: str) -> str:
    """Return tiny or smollm2, by its name or as saved, else other."""
    if name_or_dir in CONTEXT_TOK:
        return name_or_dir
    config = Path(lora.base_of(name_or_dir)) / "config.json"
    text = config.read_text(errors="replace") if config.is_file() else ""
    return next((kind for kind in CONTEXT_TOK if f'"nanomle_kind": "{kind}"' in text), "other")


def reads_brief_prompts(name_or_dir: str) -> bool:
    return model_kind(name_or_dir) != "other"


def read_config(name_or_dir: str) -> PretrainedConfig:
    """Return the shape of a language model. Raises OSError if it is not at hand, ValueError for a file that describes none."""
    try:
        return AutoConfig.from_pretrained(name_or_dir)
    except (OSError, ValueError):
        raise
    except Exception as error:  # the file is a user's: a word for a number ends in an error of transformers' own kinds
        raise ValueError(str(error)) from error


def context_tok(name_or_dir: str) -> float:
    """Return how many tokens a model can read; inf if it does not say. Raises ValueError like load_policy."""
    if name_or_dir in CONTEXT_TOK:
        return CONTEXT_TOK[name_or_dir]
    try:
        return getattr(read_config(lora.base_of(name_or_dir)), "max_position_embeddings", float("inf"))
    except (OSError, ValueError) as error:
        raise not_a_model(name_or_dir, error) from error


def not_a_model(name_or_dir: str, error: Exception) -> ValueError:
    reason = str(error).strip().split("\n")[0][:160]
    return ValueError(f"--model {name_or_dir}: not tiny or smollm2, and no causal language model could be loaded from there "
                      f"({reason})")  # fmt: skip


def load_policy(name_or_dir: str, device: str = "cpu") -> Policy:
    """Load a Hugging Face causal LM (hub name or directory), with its value head where the directory has one.

    A directory of a LoRA adapter is loaded with the base that it names, and merged.

    Weights are fp32: an AdamW step of 1e-5 on a bf16 weight rounds to nothing. Raises ValueError with one line when nothing
    loadable is there.
    """
    transformers.utils.logging.disable_progress_bar()  # it would run for milliseconds, at every load
    try:
        base = lora.base_of(name_or_dir)
        tokenizer = load_tokenizer(base)
        lm, info = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32, output_loading_info=True)
        if info["missing_keys"]:
            raise ValueError(f"weights are missing, such as {min(info['missing_keys'])}")
        if len(tokenizer) > lm.get_input_embeddings().num_embeddings:
            raise ValueError(f"its tokenizer has {len(tokenizer)} tokens, its weights have fewer")
        if base != name_or_dir:
            lora.load_adapter(lm, Path(name_or_dir))
            lora.merge(lm)
        policy = Policy(lm, tokenizer)
        if (Path(name_or_dir) / VALUE_HEAD_FILE).exists():
            load_value_head(policy, Path(name_or_dir))
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RuntimeError, SafetensorError) as error:
        raise not_a_model(name_or_dir, error) from error  # files of any content: each of these has been met
    check_forward(policy, name_or_dir)
    return policy.to(device)


def load_value_head(policy: Policy, directory: Path) -> None:
    """Read value_head.safetensors into the policy."""
    state = load_file(directory / VALUE_HEAD_FILE)
    policy.value_head.load_state_dict({"weight": state["weight"], "bias": state["bias"]})
    policy.value_mean.copy_(state["value_mean"])
    policy.value_std.copy_(state["value_std"])


@torch.no_grad()
def check_forward(policy: Policy, name: str) -> None:
    """Raise ValueError where the model does more to its logits than Policy does: scale them, or cap them."""
    tokens = torch.arange(4)[None] % policy.lm.config.vocab_size  # (1, T)
    ours, theirs = policy(tokens)[0], policy.lm(tokens).logits
    if not torch.allclose(ours, theirs, rtol=1e-4, atol=1e-4):
        raise ValueError(f"--model {name}: {type(policy.lm).__name__} transforms its logits (a cap or a scale): not supported")


def load_tokenizer(name_or_dir: str):
    """Load a tokenizer as it was saved.

    AutoTokenizer gives every model of type qwen2 the pre-tokenizer of Qwen2, whatever tokenizer.json says: the tiny policy
    would read its prompts in pieces that it never saw.
    """
    config = Path(name_or_dir) / "tokenizer_config.json"
    generic = config.is_file() and json.loads(config.read_text()).get("tokenizer_class") == "TokenizersBackend"
    return (PreTrainedTokenizerFast if generic else AutoTokenizer).from_pretrained(name_or_dir)


def save_policy(
    policy: Policy, directory: Path, weights: dict[str, torch.Tensor] | None = None, base: Path | None = None
) -> None:
    """Write the policy as a Hugging Face directory plus value_head.safetensors. Tied embeddings are stored once.

    weights: of the language model by name, where the policy itself holds only a shard of them. A LoRA adapter is merged, and
    written unmerged to adapter/; base: directory of what it adapts, if not where the policy was loaded from.
    """
    transformers.utils.logging.disable_progress_bar()
    if lora.adapters(policy.lm):
        weights = weights or dict(policy.lm.named_parameters())
        lora.save_adapter(policy.lm, weights, Path(directory) / ADAPTER_DIR, base or policy.lm.name_or_path)
        weights = lora.plain_weights(policy.lm, weights)
    policy.lm.save_pretrained(directory, state_dict=weights)
    policy.tokenizer.save_pretrained(directory)
    head = {name: tensor.detach().cpu() for name, tensor in policy.value_head.state_dict().items()}
    save_file(
        {**head, "value_mean": policy.value_mean.cpu(), "value_std": policy.value_std.cpu()},
        Path(directory) / VALUE_HEAD_FILE,
    )


def use_bf16(policy: Policy) -> Policy:
    """Multiply matrices in bfloat16 from now on. Projections of the layers that are frozen are kept in it, in half the memory:
    they would be converted at each use anyway."""
    policy.bf16 = True
    for layer in (layer for block in lora.decoder_layers(policy.lm) for layer in block.modules()):
        if isinstance(layer, nn.Linear) and not layer.weight.requires_grad:
            layer.to(torch.bfloat16)
    return policy


def checkpoint_gradients(policy: Policy) -> Policy:
    """Keep only the input of each decoder layer for the backward pass, and compute the layer once more there (1604.06174)."""
    policy.lm.activation_checkpointing_enable({"use_reentrant": False})
    for layer in lora.decoder_layers(policy.lm):
        layer.training = True  # transformers asks for it; the modules inside, dropout too, stay in eval mode
    return policy


def frozen_copy(policy: Policy) -> Policy:
    """Copy the policy as it is now: the KL reference. Needs no gradient and shares no tensor with the original."""
    tokenizer, policy.tokenizer = policy.tokenizer, None  # a tokenizer is read-only: share it instead of copying it
    try:
        reference = copy.deepcopy(policy)
    finally:
        policy.tokenizer = tokenizer
    reference.tokenizer = tokenizer
    return reference.requires_grad_(False)
