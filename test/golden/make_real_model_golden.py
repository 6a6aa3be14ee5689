#!/usr/bin/env python3
"""Makes real_models/gemma3.json: what Hugging Face's transformers computes in fp32 with Gemma 3 270M.

    make_real_model_golden.py FOLDER TEXT       FOLDER: what `data/get_model.sh gemma3` wrote; TEXT: Tiny Shakespeare
"""
import hashlib
import json
import pathlib
import sys

import peft
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

PROMPTS = ["What is the capital of France, and what is it famous for?", "Explain in two sentences why the sky is blue.",
           "Write a haiku about the sea."]
TEXTS = ["First Citizen: Before we proceed any further, hear me speak.", "naïve café 12345 你好 😀  two  spaces\ttab",
         "if (x<=0){return -1;}//ende"]
WINDOW, N_WINDOWS, N_STEPS, LEARNING_RATE = 256, 4, 3, 2e-5
LORA = dict(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"])
LORA_LEARNING_RATE = 1e-2

folder, play = map(pathlib.Path, sys.argv[1:])
tokenizer = AutoTokenizer.from_pretrained(folder)
model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
golden = {"model.safetensors sha256": hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest(),
          "ids": {text: tokenizer(text).input_ids for text in TEXTS}, "greedy": []}
for prompt in PROMPTS:
    ids = tokenizer(prompt, return_tensors="pt").input_ids
    new = model.generate(ids, do_sample=False, max_new_tokens=40)[0, ids.shape[1]:]
    beams = model.generate(ids, do_sample=False, max_new_tokens=24, num_beams=4)[0, ids.shape[1]:]
    golden["greedy"].append({"prompt": prompt, "new ids": new.tolist(), "text": tokenizer.decode(new),
                             "ids with 4 beams": beams.tolist()})

golden["text"] = play.read_text()[:5000]
windows = torch.tensor(tokenizer(golden["text"]).input_ids)[:N_WINDOWS * WINDOW].view(N_WINDOWS, WINDOW)


def losses_of(model, learning_rate):
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=learning_rate, weight_decay=0)
    losses = []
    for _ in range(N_STEPS):
        loss = model(windows, labels=windows).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        print(loss.item(), flush=True)
    return losses


golden["learning rate"], golden["losses"] = LEARNING_RATE, losses_of(model, LEARNING_RATE)
model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
model = peft.get_peft_model(model, peft.LoraConfig(task_type="CAUSAL_LM", **LORA)).train()
shapes = {}
with torch.no_grad():
    for name, p in model.named_parameters():
        if p.requires_grad:
            shapes[name.replace(".default", "")] = list(p.shape)
            values = (torch.arange(p.numel()) * 7919 % 257 / 128 - 1) * 0.02  # of A; B is zero
            p.copy_(values.reshape(p.shape) if "lora_A" in name else torch.zeros_like(p))
golden["lora"] = LORA | {"learning rate": LORA_LEARNING_RATE, "shapes": shapes,
                         "losses": losses_of(model, LORA_LEARNING_RATE)}
out = pathlib.Path(__file__).parent / "real_models/gemma3.json"
out.write_text(json.dumps(golden, ensure_ascii=False) + "\n")
