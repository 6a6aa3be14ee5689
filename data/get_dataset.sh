#!/usr/bin/env bash
# Fetches a data set of the Hugging Face Hub into its local cache, where `lockstep data import` finds it by its name. To be
# run where there is a network, such as on a login node.
#
#   data/get_dataset.sh ORGANISATION/NAME[@REVISION]       for example HuggingFaceH4/no_robots
#
# Needs `hf` (or `huggingface-cli`) of the Python package huggingface_hub; without it, the package is installed into a
# temporary environment. Some data sets also need `hf auth login` (or HF_TOKEN) and a licence that was accepted on the page of
# the data set.
set -euo pipefail
name=${1:-}
if [[ $# != 1 || ! $name =~ ^[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9._-]+(@[A-Za-z0-9._/-]+)?$ ]]; then
  echo "usage: get_dataset.sh ORGANISATION/NAME[@REVISION]" >&2
  exit 2
fi
arguments=(download --repo-type dataset "${name%@*}")
if [[ $name == *@* ]]; then arguments+=(--revision "${name#*@}"); fi
hf=$(command -v hf || command -v huggingface-cli || true)
if [[ -z $hf ]]; then
  work=$(mktemp -d)
  trap 'rm -rf "$work"' EXIT
  python3 -m venv "$work/venv"
  "$work/venv/bin/python" -m pip install --quiet huggingface_hub
  hf=$work/venv/bin/hf
fi
if ! "$hf" "${arguments[@]}"; then
  echo "get_dataset.sh: $name was not fetched. If it needs a licence, accept it on https://huggingface.co/datasets/${name%@*}, and log in with: hf auth login" >&2
  exit 1
fi
echo "Ready. Import it with: lockstep data import KIND $name OUT.h5 (lockstep data import --help lists the kinds)"
