"""memory.py against hand-computed numbers, against what an update really takes, and on paper: 3B on one GPU of 24 GB."""

import json

import pytest
from conftest import run_script
from transformers import LlamaConfig, Qwen2Config

import memory
from config import parse_args

SHAPE = LlamaConfig(hidden_size=256, intermediate_size=1024, num_hidden_layers=6, num_attention_heads=8, num_key_value_heads=4,
                    vocab_size=8192, tie_word_embeddings=True)  # fmt: skip
QWEN_3B = Qwen2Config(hidden_size=2048, intermediate_size=11008, num_hidden_layers=36, num_attention_heads=16,
                      num_key_value_heads=2, vocab_size=151936, tie_word_embeddings=True)  # fmt: skip
PROJECTIONS = 6 * (2 * 256 * 256 + 2 * 256 * 128 + 3 * 256 * 1024)  # q and o, k and v, the MLP's three


def estimate(*flags: str, shape=SHAPE, **options) -> dict[str, float]:
    return memory.estimate(parse_args(["--model", "some/model", *flags])[0], shape, **options)


def test_what_is_held_is_counted_by_hand():
    gib, total = 2**30, PROJECTIONS + 8192 * 256 + 13 * 256  # embeddings once, two norms a layer and the last
    fp32 = estimate("--precision", "fp32")
    assert fp32["weights"] * gib == fp32["reference"] * gib == fp32["gradients"] * gib == 4 * total
    assert fp32["AdamW"] * gib == 8 * total
    bf16 = estimate("--precision", "bf16")
    assert bf16["weights"] * gib == 4 * total and bf16["reference"] * gib == 4 * total - 2 * PROJECTIONS
    lora = estimate("--precision", "bf16", "--lora-rank", "8")
    adapter = 8 * 6 * (2 * (256 + 256) + 2 * (256 + 128) + 3 * (256 + 1024))
    assert lora["weights"] * gib == 4 * total - 2 * PROJECTIONS + 4 * adapter
    assert (lora["reference"], lora["AdamW"] * gib, lora["gradients"] * gib) == (0, 8 * adapter, 4 * adapter)


def test_sharding_divides_what_is_held_and_not_the_work(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "4")
    whole, sharded = estimate("--precision", "fp32"), estimate("--precision", "fp32", "--shard", world=4)
    for name in ("weights", "reference", "AdamW", "gradients"):
        assert sharded[name] == whole[name] / 4
    assert (sharded["sampling"], sharded["update"]) == (whole["sampling"], whole["update"])
    assert sharded["whole weights while sampling and scoring"] == 2 * whole["weights"]


@pytest.mark.parametrize("flags", [[], ["--gradient-checkpointing"]])
def test_an_update_takes_what_the_arithmetic_says(flags, tmp_path):
    SHAPE.save_pretrained(tmp_path)
    size = ["--batch-size", "8", "--minibatches", "1", "--micro-batch-tok", "2048", "--max-prompt-tok", "256",
            "--max-new-tok", "256", "--threads", "1", "--no-gradient-checkpointing", "--precision", "fp32"]  # fmt: skip
    done = run_script("bench/update.py", "--model", tmp_path, *size, *flags)
    assert done.returncode == 0, done.stderr
    measured = json.loads(done.stdout.splitlines()[-1])
    assert measured["peak_gib"] == pytest.approx(measured["peak_by_arithmetic_gib"], rel=0.3)
    assert 0 <= measured["padding_sorted"] < measured["padding_arrival"] < 1


def test_a_3b_model_with_lora_fits_one_gpu_of_24_gb_on_paper():
    flags = ["--precision", "bf16", "--lora-rank", "16", "--sample-batch", "32", "--micro-batch-tok", "4096"]
    assert estimate(*flags, shape=QWEN_3B, device="cuda")["peak"] < 0.85 * 24e9 / 2**30
    assert estimate("--precision", "bf16", shape=QWEN_3B, device="cuda")["peak"] > 24e9 / 2**30  # all weights do not


def test_the_plan_of_a_run_has_the_table_or_says_why_not(tmp_path):
    assert "AdamW" in memory.table(parse_args(["--model", "tiny"])[0], 1)
    unknown = memory.table(parse_args(["--model", "no/such-model"])[0], 1)
    assert "not known" in unknown and "\n" not in unknown


BROKEN = ({"vocab_size": "x"}, {"hidden_size": 0, "num_attention_heads": 0}, {"model_type": "none"}, [])


@pytest.mark.parametrize("broken", BROKEN)
def test_a_model_whose_config_describes_no_model_has_no_table_and_says_why(tmp_path, broken):
    settings = {"model_type": "qwen2", "num_hidden_layers": 1} | broken if broken else broken
    (tmp_path / "config.json").write_text(json.dumps(settings))
    unknown = memory.table(parse_args(["--model", str(tmp_path)])[0], 1)
    assert "not known" in unknown and "\n" not in unknown
