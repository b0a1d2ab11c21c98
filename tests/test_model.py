"""model.py: one forward for both heads, a frozen copy, save and load."""

import copy

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, Gemma2Config, Gemma2ForCausalLM, LlamaConfig, LlamaForCausalLM

from checkpoint import UsageError
from config import Config, resolve
from model import build_tiny, frozen_copy, load_policy, model_kind, save_policy
from smollm2 import clean_llama, find_smollm2


def test_a_new_value_head_predicts_zero_and_passes_no_gradient_to_the_backbone(tokenizer):
    policy = build_tiny(tokenizer, 0)
    _, values = policy(torch.tensor([[5, 6, 7]]))
    assert torch.equal(values, torch.zeros(1, 3))
    values.sum().backward()
    assert all(p.grad is None or not p.grad.any() for p in policy.lm.parameters())


def test_tiny_has_about_a_million_parameters_with_its_real_vocabulary(tokenizer):
    policy = build_tiny(tokenizer, 0)
    without_embedding = sum(p.numel() for p in policy.lm.parameters()) - policy.lm.get_input_embeddings().weight.numel()
    assert 0.9e6 < without_embedding + 1700 * 128 < 3e6


def test_detach_value_stops_the_gradient_at_the_backbone_only(policy):
    _, values = policy(torch.tensor([[5, 6, 7]]), detach_value=True)
    values.sum().backward()
    assert all(p.grad is None for p in policy.lm.parameters())
    assert policy.value_head.weight.grad.any()


def test_saved_and_loaded_everything_is_bit_equal(policy, tmp_path):
    policy.value_mean.fill_(-3.25)
    policy.value_std.fill_(1.7)
    save_policy(policy, tmp_path)
    loaded = load_policy(str(tmp_path))
    for name, tensor in policy.state_dict().items():
        assert torch.equal(tensor, loaded.state_dict()[name]), name
    tokens = torch.tensor([[5, 6, 7, 8]])
    assert all(torch.equal(a, b) for a, b in zip(policy(tokens), loaded(tokens), strict=True))
    text = 'cols = ["requester_number_of_posts", 1200]\n    x = 1'  # Qwen2's own pre-tokenizer cuts this differently
    assert loaded.tokenizer.encode(text) == policy.tokenizer.encode(text)


def test_auto_model_loads_the_saved_policy_with_tied_embeddings_stored_once(policy, tmp_path):
    save_policy(policy, tmp_path)
    lm = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert lm.get_input_embeddings().weight is lm.get_output_embeddings().weight
    stored = sum(f.stat().st_size for f in tmp_path.glob("model*.safetensors"))
    assert stored < 4 * sum(p.numel() for p in policy.lm.parameters()) + 20_000


def test_the_reference_shares_nothing_needs_no_gradient_and_does_not_change(policy):
    reference = frozen_copy(policy)
    assert reference is not policy and reference.tokenizer is policy.tokenizer
    assert not any(p.requires_grad for p in reference.parameters())
    assert not {p.data_ptr() for p in policy.parameters()} & {p.data_ptr() for p in reference.parameters()}
    before = {name: tensor.clone() for name, tensor in reference.state_dict().items()}
    optimizer = torch.optim.SGD(policy.parameters(), lr=0.1)
    logits, values = policy(torch.tensor([[5, 6, 7]]))
    (logits.sum() + values.sum()).backward()
    optimizer.step()
    assert all(torch.equal(before[name], tensor) for name, tensor in reference.state_dict().items())
    assert not torch.equal(policy.value_head.weight, reference.value_head.weight)


def test_the_policy_is_in_eval_mode(policy):
    assert not policy.training and not any(module.training for module in policy.modules())


def test_stop_ids_come_from_generation_config_and_tokenizer(policy):
    policy.lm.generation_config.eos_token_id = [7, 9]
    assert policy.stop_ids == tuple(sorted({7, 9, policy.tokenizer.eos_token_id}))


def test_an_unknown_model_is_refused_in_one_line(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(ValueError, match="no-such/model") as error:
        load_policy("no-such/model")
    assert "\n" not in str(error.value)


def test_a_saved_tiny_policy_is_still_tiny(tokenizer, policy, tmp_path):
    save_policy(build_tiny(tokenizer, 0), tmp_path / "tiny")
    save_policy(policy, tmp_path / "other")
    names = ("tiny", str(tmp_path / "tiny"), str(tmp_path / "other"), "Qwen/x")
    assert [model_kind(name) for name in names] == ["tiny", "tiny", "other", "other"]


def test_a_model_that_caps_its_logits_is_refused(tokenizer, tmp_path):
    config = Gemma2Config(vocab_size=len(tokenizer), hidden_size=32, intermediate_size=32, num_hidden_layers=1,
                          num_attention_heads=2, num_key_value_heads=1, head_dim=16, final_logit_softcapping=0.01)  # fmt: skip
    Gemma2ForCausalLM(config).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="Gemma2ForCausalLM transforms its logits"):
        load_policy(str(tmp_path))


def test_a_model_marked_as_quantised_becomes_one_that_can_be_saved(tmp_path):
    """What transformers makes of a GGUF file (SmolLM2) carries marks that forbid saving; the weights, tied ones too, stay."""
    config = LlamaConfig(vocab_size=50, hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2,
                         tie_word_embeddings=True, quantization_config={"quant_method": "gguf"})  # fmt: skip
    clean = clean_llama(loaded := LlamaForCausalLM(config))
    clean.save_pretrained(tmp_path)
    again = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert not hasattr(again.config, "quantization_config") and again.config.tie_word_embeddings
    assert again.get_output_embeddings().weight is again.get_input_embeddings().weight
    assert all(torch.equal(a, b) for a, b in zip(again.parameters(), loaded.parameters(), strict=True))
    assert model_kind(str(tmp_path)) == "smollm2"


def test_smollm2_is_asked_for_before_it_is_there(tmp_path, monkeypatch):
    monkeypatch.setenv("NANOMLE_CACHE", str(tmp_path))
    with pytest.raises(ValueError, match="make smollm2"):
        find_smollm2()
    with pytest.raises(UsageError, match="make smollm2"):
        resolve(Config(task="hello-world", model="smollm2"))


def test_a_directory_that_lacks_weights_or_has_another_tokenizer_is_refused(policy, tmp_path):
    """transformers would draw the missing ones at random and go on."""
    save_policy(policy, tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    save_file({k: x for k, x in weights.items() if ".layers.1." not in k}, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(ValueError, match="weights are missing"):
        load_policy(str(tmp_path))
    save_file(weights, tmp_path / "model.safetensors", {"format": "pt"})
    (tmp_path / "value_head.safetensors").write_bytes(b"cut")
    with pytest.raises(ValueError, match="no causal language model could be loaded"):
        load_policy(str(tmp_path))
    (tmp_path / "value_head.safetensors").unlink()
    larger = copy.deepcopy(policy.tokenizer)  # the tests share it
    larger.add_tokens([f"<{i}>" for i in range(10)])
    larger.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="tokenizer has"):
        load_policy(str(tmp_path))
