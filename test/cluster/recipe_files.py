"""Small models and data sets in the formats in which docs/recipes gets the real ones.

    recipe_files.py FOLDER REPOSITORY
"""
import gzip
import io
import json
import pathlib
import random
import struct
import subprocess
import sys
import tarfile
import zipfile

from PIL import Image

folder, repository = map(pathlib.Path, sys.argv[1:])
rng = random.Random(1)


def pixels(n):
    return rng.randbytes(n)


def idx(images, size=28):
    labels = bytes(i % 10 for i in range(images))
    return (struct.pack(">IIII", 0x803, images, size, size) + pixels(images * size * size), struct.pack(">II", 0x801, images) + labels)


for name, images in (("train", 120), ("t10k", 40)):
    for kind, data in zip(("images-idx3", "labels-idx1"), idx(images)):
        (folder / f"{name}-{kind}-ubyte.gz").write_bytes(gzip.compress(data))

with tarfile.open(folder / "cifar-10-binary.tar.gz", "w:gz") as tar:
    def add(name, data):
        entry = tarfile.TarInfo(f"cifar-10-batches-bin/{name}")
        entry.size = len(data)
        tar.addfile(entry, io.BytesIO(data))
    for batch in ("data_batch_1", "data_batch_2", "data_batch_3", "data_batch_4", "data_batch_5", "test_batch"):
        add(f"{batch}.bin", b"".join(bytes([i % 10]) + pixels(3072) for i in range(40)))
    add("batches.meta.txt", "\n".join(f"class{i}" for i in range(10)).encode())

with zipfile.ZipFile(folder / "tiny-imagenet-200.zip", "w") as archive:
    def jpeg():
        out = io.BytesIO()
        Image.frombytes("RGB", (64, 64), pixels(3 * 64 * 64)).save(out, "JPEG")
        return out.getvalue()
    classes = [f"n{i:08}" for i in range(200)]
    archive.writestr("tiny-imagenet-200/wnids.txt", "\n".join(classes) + "\n")
    archive.writestr("tiny-imagenet-200/words.txt", "".join(f"{name}\tthing {name}\n" for name in classes))
    image, annotations = jpeg(), ""
    for name in classes:
        for i in range(2):
            archive.writestr(f"tiny-imagenet-200/train/{name}/images/{name}_{i}.JPEG", image)
        archive.writestr(f"tiny-imagenet-200/val/images/val_{name}.JPEG", image)
        annotations += f"val_{name}.JPEG\t{name}\t0\t0\t62\t62\n"
    archive.writestr("tiny-imagenet-200/val/val_annotations.txt", annotations)

# Text and conversations
words = (repository / "LICENSE").read_text().split()
with open(folder / "abstracts.jsonl", "w") as file:
    for i in range(10000):
        file.write(json.dumps({"abstract": " ".join(words[i % 1000:i % 1000 + 10])}) + "\n")
with open(folder / "messages.jsonl", "w") as file:
    for i in range(60):
        text = [" ".join(words[15 * i + a:15 * i + b]) for a, b in ((0, 6), (6, 12))]
        file.write(json.dumps({"messages": [{"role": "user", "content": text[0]}, {"role": "assistant", "content": text[1]}]}) + "\n")
(folder / "datasets").mkdir()
subprocess.run(["cp", "-r", repository / "test/golden/tables/conversations/data", folder / "datasets"], check=True)
# A Qwen2 whose tokenizer has the tokens of chatml. Its weights are random.
model = folder / "models"
model.mkdir()
tokenizer = json.loads((repository / "data/samples/tokenizer.json").read_text())
size = 1 + max(max(tokenizer["model"]["vocab"].values()), *(token["id"] for token in tokenizer["added_tokens"]))
for i, content in enumerate(["<|im_start|>", "<|im_end|>"]):
    tokenizer["added_tokens"].append(dict(tokenizer["added_tokens"][0], id=size + i, content=content))
(model / "tokenizer.json").write_text(json.dumps(tokenizer))
CHATML = ("{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>' + '\n' }}{% endfor %}"
          "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}")
(model / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": CHATML,
                                                         "eos_token": "<|im_end|>"}))
config = {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "vocab_size": size + 2, "hidden_size": 64, "intermediate_size": 96,
          "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 2048,
          "tie_word_embeddings": True, "eos_token_id": size + 1}
(model / "config.json").write_text(json.dumps(config))
tensors = {"model.embed_tokens.weight": (size + 2, 64), "model.norm.weight": (64,)}
for name, shape in {"input_layernorm.weight": (64,), "post_attention_layernorm.weight": (64,), "self_attn.q_proj.weight": (64, 64),
                    "self_attn.q_proj.bias": (64,), "self_attn.k_proj.weight": (32, 64), "self_attn.k_proj.bias": (32,),
                    "self_attn.v_proj.weight": (32, 64), "self_attn.v_proj.bias": (32,), "self_attn.o_proj.weight": (64, 64),
                    "mlp.gate_proj.weight": (96, 64), "mlp.up_proj.weight": (96, 64), "mlp.down_proj.weight": (64, 96)}.items():
    tensors[f"model.layers.0.{name}"] = shape
header, data = {}, b""
for name, shape in tensors.items():
    n = shape[0] * (shape[1] if len(shape) > 1 else 1)
    values = [1.0] * n if "norm" in name else [rng.gauss(0, 0.02) for _ in range(n)]
    header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [len(data), len(data) + 4 * n]}
    data += struct.pack(f"<{n}f", *values)
text = json.dumps(header).encode()
(model / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)
