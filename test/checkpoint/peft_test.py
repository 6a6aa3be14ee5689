# long: yes
# timeout: 600
"""PEFT loads the adapters that a run writes, and computes the same output as Lockstep; a run continues with adapters
that PEFT saved; PEFT merges adapters in the same way as `checkpoint merge`.

Exit status 77 (skipped) without peft, transformers and torch. LOCKSTEP is the program.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile

os.environ["HF_HUB_OFFLINE"] = "1"
try:
    import peft
    import torch
    import transformers
except ImportError as missing:
    print(f"skipped: {missing}")
    sys.exit(77)

LOCKSTEP = os.path.abspath(os.environ.get("LOCKSTEP", "build/lockstep"))
SIZES = dict(vocab_size=1024, hidden_size=56, intermediate_size=40, num_hidden_layers=3, num_attention_heads=7,
             num_key_value_heads=1, max_position_embeddings=64, initializer_range=0.2, bos_token_id=None, eos_token_id=0)
TARGETS = ["q_proj", "k_proj", "o_proj", "up_proj", "down_proj"]
MODELS = {  # with what PEFT adapts, and the size of a head
    "llama": (transformers.LlamaConfig(**SIZES, tie_word_embeddings=True), TARGETS, 8),
    "gemma3-vision": (transformers.Gemma3Config(
        text_config=transformers.Gemma3TextConfig(**SIZES, head_dim=16, sliding_window=9, query_pre_attn_scalar=16),
        vision_config=transformers.SiglipVisionConfig(hidden_size=8, intermediate_size=12, num_hidden_layers=1,
                                                      num_attention_heads=2, image_size=8, patch_size=4),
        mm_tokens_per_image=4, boi_token_index=90, eoi_token_index=91, image_token_index=92),
        rf".*language_model.*\.({'|'.join(TARGETS)})", 16)}
LORA = ["model.lora.rank=4", "model.lora.alpha=12", "model.lora.rslora=true", "model.lora.targets=[q, k, o, up, down]"]


def run(*arguments):
    result = subprocess.run([LOCKSTEP, *arguments], capture_output=True, text=True)
    assert result.returncode == 0, (arguments, result.stdout, result.stderr)
    return result.stdout


def load(base):
    return transformers.AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32).eval()


def apart(a, b):
    return (a - b).abs().max().item()


def train(work, base, name, *more):
    run("train", "model.family=llama", f"model.from={base}", *LORA, "data.train=data/samples/shakespeare_train.h5",
        "data.sequence_length=32", "train.global_batch=8", "train.max_steps=6", "optimizer.kind=adamw",
        "optimizer.learning_rate=0.02", "schedule.warmup_epochs=0", f"run.directory={work}", f"run.name={name}",
        "log.progress=false", "log.tensorboard=false", "cpu.threads=1", *more)
    return os.path.join(work, name, "model")


def compare(config, targets, head):
    with tempfile.TemporaryDirectory() as work:
        base = os.path.join(work, "base")
        torch.manual_seed(1)
        transformers.AutoModelForCausalLM.from_config(config).save_pretrained(base)
        shutil.copy("data/samples/tokenizer.json", base)
        adapter = train(work, base, "run")
        model = peft.PeftModel.from_pretrained(load(base), adapter).eval()
        n = sum(p.numel() for name, p in model.named_parameters() if "lora_" in name)
        assert n == 3 * 4 * (2 * (56 + 7 * head) + (56 + head) + 2 * (56 + 40)), n

        # What Lockstep generates, with the log-probability of each token.
        reply = json.loads(run("generate", os.path.join(work, "run"), "--prompt", "O Romeo", "--max-new-tokens", "12",
                               "--ignore-end", "--json").splitlines()[-1])
        ids = transformers.PreTrainedTokenizerFast(tokenizer_file=os.path.join(base, "tokenizer.json"))("O Romeo")["input_ids"]
        with torch.no_grad():
            logits = model(torch.tensor([ids + reply["tokens"]])).logits[0]
            unadapted = load(base)(torch.tensor([ids + reply["tokens"]])).logits[0]
        logprobs = torch.log_softmax(logits, -1)
        theirs = torch.stack([logprobs[len(ids) - 1 + i, token] for i, token in enumerate(reply["tokens"])])
        distance = apart(theirs, torch.tensor(reply["logprobs"]))
        print(f"log-probabilities differ by at most {distance:.1e}; adapters change the logits by {apart(logits, unadapted):.1e}")
        assert distance < 1e-4 < apart(logits, unadapted) / 10

        merged = os.path.join(work, "merged")
        run("checkpoint", "merge", base, adapter, merged)
        ours, of_peft = load(merged).state_dict(), model.merge_and_unload().state_dict()
        distance = max(apart(ours[name], of_peft[name]) for name in ours)
        print(f"merged weights differ by at most {distance:.1e}")
        assert distance < 1e-6

        # Adapters made by PEFT, whose B is not zero, are trained further, and are written back unchanged.
        torch.manual_seed(2)
        adapted = peft.LoraConfig(r=4, lora_alpha=12, use_rslora=True, task_type="CAUSAL_LM", init_lora_weights=False,
                                  target_modules=targets)
        other = peft.get_peft_model(load(base), adapted)
        saved = os.path.join(work, "saved")
        other.save_pretrained(saved)
        train(work, base, "further", f"model.initialize_from={saved}")
        run("checkpoint", "import", saved, os.path.join(work, "saved.h5"), "--base", base)
        again = os.path.join(work, "again")
        run("checkpoint", "export", os.path.join(work, "saved.h5"), again, "--base", base)
        same = peft.PeftModel.from_pretrained(load(base), again).state_dict()
        before = peft.PeftModel.from_pretrained(load(base), saved).state_dict()
        assert same.keys() == before.keys() and all(torch.equal(same[name], before[name]) for name in same)
        print("an adapter of PEFT is exported with the same bits")


for name, model in MODELS.items():
    print(name)
    compare(*model)
