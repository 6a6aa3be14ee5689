# long: yes
# timeout: 600
"""transformers loads the directories that `checkpoint export` writes, and computes the same logits as with the model
that was imported. Importing and exporting a directory that transformers saved gives the same files, byte for byte.

Exit status 77 (skipped) without transformers and torch. LOCKSTEP is the program.
"""

import json
import os
import struct
import subprocess
import sys
import tempfile

os.environ["HF_HUB_OFFLINE"] = "1"
try:
    import torch
    import transformers
    from transformers import AutoModelForCausalLM
except ImportError as missing:
    print(f"skipped: {missing}")
    sys.exit(77)

LOCKSTEP = os.path.abspath(os.environ.get("LOCKSTEP", "build/lockstep"))
SIZES = dict(vocab_size=93, hidden_size=56, intermediate_size=40, num_hidden_layers=11, num_attention_heads=7,
             num_key_value_heads=1, max_position_embeddings=64, initializer_range=0.2)
MODELS = {
    "llama": transformers.LlamaConfig(**SIZES, attention_bias=True, mlp_bias=True),
    "llama-tied": transformers.LlamaConfig(**SIZES | {"num_key_value_heads": 7}, tie_word_embeddings=True),
    "llama3": transformers.LlamaConfig(**SIZES, rope_parameters={
        "rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 16}),
    "qwen2": transformers.Qwen2Config(**SIZES, tie_word_embeddings=True),
    "qwen3": transformers.Qwen3Config(**SIZES, head_dim=12),
    "mistral": transformers.MistralConfig(**SIZES, sliding_window=4),
    "smollm3": transformers.SmolLM3Config(**SIZES, pad_token_id=None, bos_token_id=1, eos_token_id=2),
    "gemma3": transformers.Gemma3TextConfig(**SIZES, head_dim=16, sliding_window=4, query_pre_attn_scalar=20, pad_token_id=None),
    "gemma3-vision": transformers.Gemma3Config(
        text_config=transformers.Gemma3TextConfig(**SIZES, head_dim=16, sliding_window=4, pad_token_id=None),
        vision_config=transformers.SiglipVisionConfig(hidden_size=8, intermediate_size=12, num_hidden_layers=1,
                                                      num_attention_heads=2, image_size=8, patch_size=4),
        mm_tokens_per_image=4, boi_token_index=90, eoi_token_index=91, image_token_index=92),
}
TOKENS = torch.tensor([[5, 90, 2, 33, 33, 7, 1, 64, 12, 80]])


def checkpoint(*arguments):
    result = subprocess.run([LOCKSTEP, "checkpoint", *arguments], capture_output=True, text=True)
    assert result.returncode == 0, (arguments, result.stdout, result.stderr)
    return result.stdout


def files_of(folder):
    return {name: open(os.path.join(folder, name), "rb").read() for name in sorted(os.listdir(folder))}


def randomized(config, dtype):
    """Norms and biases have random values too, so that none can be mistaken for another one."""
    torch.manual_seed(1)
    model = AutoModelForCausalLM.from_config(config).to(dtype)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape) * 0.2 + (parameter.dim() == 1))
    return model.eval()


def logits(model, tokens=TOKENS):
    with torch.no_grad():
        return model(tokens).logits


def there_and_back(name, config, dtype, shard_size, folder):
    folder = tempfile.mkdtemp(dir=folder)
    saved, exported, file = (os.path.join(folder, f"{name}-{part}") for part in ("saved", "exported", "file.h5"))
    model = randomized(config, dtype)
    model.save_pretrained(saved, max_shard_size=shard_size)
    checkpoint("import", saved, file)
    checkpoint("export", file, exported, "--files", saved)
    before, after = files_of(saved), files_of(exported)
    assert after.pop("README.md").startswith(b"---\nlicense: unknown\n")
    is_sharded = "model.safetensors.index.json" in before
    if is_sharded:  # the export is one file
        assert len(before) > 4, before.keys()
        for small in ("config.json", "generation_config.json"):
            assert before[small] == after[small], small
    else:
        assert before == after, [n for n in before.keys() | after.keys() if before.get(n) != after.get(n)]
    loaded = AutoModelForCausalLM.from_pretrained(exported).eval()
    assert type(loaded) is type(model) and loaded.dtype == dtype, (type(loaded), loaded.dtype)
    original = AutoModelForCausalLM.from_pretrained(saved).eval()
    configs = [one.config.to_diff_dict() | {"_name_or_path": ""} for one in (loaded, original)]
    assert configs[0] == configs[1], configs
    expected = model.state_dict()
    found = loaded.state_dict()
    assert found.keys() == expected.keys()
    for key, values in expected.items():
        assert torch.equal(found[key], values), (name, key)
    # Not `model` itself: to() has rounded its rotary frequencies.
    assert torch.equal(logits(loaded), logits(original)), name

    # What a training run writes: a config.json that is derived from the recorded configuration, and fp32 weights.
    state_only = os.path.join(folder, f"{name}-plain")
    checkpoint("export", file, os.path.join(folder, f"{name}.safetensors"))
    checkpoint("import", os.path.join(folder, f"{name}.safetensors"), os.path.join(folder, "plain.h5"))
    checkpoint("export", os.path.join(folder, "plain.h5"), state_only)
    plain = AutoModelForCausalLM.from_pretrained(state_only).eval()
    assert plain.dtype == torch.float32
    in_fp32 = AutoModelForCausalLM.from_pretrained(saved, dtype=torch.float32).eval()
    assert torch.equal(logits(plain), logits(in_fp32)), name
    print(f"{name}, {dtype}, {'several files' if is_sharded else 'one file'}: the same bits")


def greedy(model, tokens, length):
    tokens = torch.tensor([tokens])
    while tokens.shape[1] < length:
        tokens = torch.cat([tokens, logits(model, tokens)[:, -1].argmax(-1, keepdim=True)], 1)
    return tokens[0].tolist()


def golden_story(folder):
    golden = json.load(open("test/golden/llama-story/golden.json"))
    data = open("test/golden/llama-story/prompt_logits_f32.bin", "rb").read()
    expected = torch.tensor(struct.unpack(f"<{len(data) // 4}f", data)).reshape(golden["logits_shape"])
    checkpoint("import", "test/golden/llama-story", f"{folder}/story.h5")
    checkpoint("export", f"{folder}/story.h5", f"{folder}/story", "--dtype", "fp32")
    model = AutoModelForCausalLM.from_pretrained(f"{folder}/story").eval()
    error = (logits(model, torch.tensor([golden["prompt_ids"]]))[0] - expected).abs().max().item()
    assert error < 1e-4, error
    assert greedy(model, golden["prompt_ids"], len(golden["greedy_ids"])) == golden["greedy_ids"]
    print(f"llama-story: the logits differ by at most {error:.1e}; the greedy text is the same")


def golden_llama2c(folder):
    expected = json.load(open("test/golden/stories260K/expected_greedy_ids.json"))["greedy_ids_including_bos"]
    checkpoint("import", "--format", "llama2c", "test/golden/stories260K/stories260K.bin", f"{folder}/260K.h5")
    checkpoint("export", f"{folder}/260K.h5", f"{folder}/260K")
    model = AutoModelForCausalLM.from_pretrained(f"{folder}/260K").eval()
    assert model.config.rms_norm_eps == 1e-5 and model.config.tie_word_embeddings
    assert greedy(model, expected[:1], len(expected)) == expected
    print("stories260K: the greedy text is the same")


def main():
    with tempfile.TemporaryDirectory() as folder:
        golden_story(folder)
        golden_llama2c(folder)
        for name, config in MODELS.items():
            for dtype in (torch.float32, torch.bfloat16, torch.float16):
                there_and_back(name, config, dtype, "1GB", folder)
            there_and_back(name, config, torch.bfloat16, "100KB", folder)


main()
