#!/usr/bin/env bash
# Checks the directory of a trained language model and uploads it to the Hugging Face Hub with `hf`. Without --upload, it
# only prints what would be uploaded.
#
#   jobs/push_to_hub.sh RUN|DIRECTORY ORGANISATION/NAME [--upload] [--private] [--message=TEXT]
#
# TEXT is the message of the commit. PUSH_LIMIT in the environment is the greatest number of seconds for the upload. Jobs
# publish their models by themselves with PUSH_TO (lib/publish.sh).
# RUN is a run directory, whose RUN/model is uploaded; DIRECTORY is one that `lockstep checkpoint export` wrote, with a
# model or with adapters. The program is LOCKSTEP, build/lockstep or the one on PATH. `hf` comes with the Python package huggingface_hub.
# Exit status: 0 if there is no problem, 1 if there is one or the upload failed, 2 for wrong usage.
[ -n "${BASH_VERSION:-}" ] || exec bash "$0" "$@" # if it was called as `sh push_to_hub.sh`
set -uo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=jobs/lib/checks.sh
source "$here/lib/checks.sh"
LOCKSTEP_HOME=${LOCKSTEP_HOME:-${here%/*}}

wrong_usage() { echo "jobs/push_to_hub.sh: $*; see --help" >&2; exit 2; }
upload='' message='' private=() operands=()
for argument in "$@"; do
  case $argument in
    --upload) upload=yes ;;
    --private) private=(--private) ;;
    --message=*) message=${argument#*=} ;;
    -h | --help) sed -n '2,/^\[ -n/p' "$0" | sed -n 's/^# \{0,1\}//p'; exit 0 ;;
    -*) wrong_usage "there is no option $argument" ;;
    *) operands+=("$argument") ;;
  esac
done
((${#operands[@]} == 2)) || wrong_usage "expected a run or a directory, and a repository, found ${#operands[@]} operands"
directory=${operands[0]%/} repository=${operands[1]}
name='[A-Za-z0-9][A-Za-z0-9._-]*'
[[ $repository =~ ^$name/$name$ ]] || wrong_usage "expected a repository such as my-team/my-model, found $repository"
if [[ ! -e $directory/config.json && ! -e $directory/adapter_config.json && -d $directory/model ]]; then
  directory=$directory/model
fi
[[ -d $directory ]] || wrong_usage "there is no directory $directory"
# Adapters have another configuration, and one file of weights.
config=config.json weights=model.safetensors
if [[ ! -e $directory/config.json && -e $directory/adapter_config.json ]]; then
  config=adapter_config.json weights=adapter_model.safetensors
fi

# The files that may be there, apart from numbered files of weights.
known=("$config" "$weights" generation_config.json README.md tokenizer.json tokenizer_config.json special_tokens_map.json
  added_tokens.json vocab.json merges.txt tokenizer.model chat_template.jinja chat_template.json)
if [[ $config == config.json ]]; then known+=(model.safetensors.index.json); fi

check_files() {
  local file entry
  if [[ ! -s $directory/$config ]]; then
    problem "$directory has no $config" \
      "name a finished run of a language model, or a directory that \`lockstep checkpoint export\` wrote"
    return
  fi
  if [[ ! -s $directory/tokenizer.json && ! -s $directory/tokenizer.model ]]; then
    problem "$directory has no tokenizer that transformers reads" \
      "export the checkpoint again with --files DIRECTORY, which has the tokenizer of the model"
  fi
  while IFS= read -r -d '' entry; do
    file=${entry##*/}
    [[ -f $entry && ! -L $entry ]] || problem "$entry is not a file" "move it away: the Hub gets plain files only"
    [[ " ${known[*]} " == *" $file "* || $file =~ ^model-[0-9]{5}-of-[0-9]{5}\.safetensors$ ]] ||
      problem "$entry does not belong to the model" "move it away, so that it is not published"
  done < <(find "$directory" -mindepth 1 -maxdepth 1 -print0 | sort -z)
}

# The index must name every file of weights, and there must be no others.
check_index() {
  local index=$directory/model.safetensors.index.json expected found
  found=$(cd "$directory" && ls | grep -E '\.safetensors$' | sort)
  if [[ -e $index ]]; then
    expected=$(grep -oE '"[^"]+\.safetensors"' "$index" | tr -d '"' | sort -u)
  else
    expected=$weights
  fi
  [[ $found == "$expected" ]] || problem \
    "the files of weights are $(xargs <<<"$found"), but ${index##*/} names $(xargs <<<"$expected")" \
    "export the checkpoint again, or move away what does not belong to the model"
}

check_weights() {
  local answer
  [[ -n $lockstep ]] || return
  answer=$("$lockstep" checkpoint verify "$directory" 2>&1) || problem \
    "the weights cannot be published: $(sed -n 's/^lockstep: error: //p' <<<"$answer" | head -1)" \
    "export the checkpoint again; \`lockstep checkpoint verify $directory\` must succeed"
}

check_card() {
  local license
  if [[ ! -s $directory/README.md ]]; then
    problem "$directory has no model card, README.md" "export the checkpoint again with this version of Lockstep"
    return
  fi
  license=$(sed -n '1{/^---$/!q};2,/^---$/{s/^license: *//p}' "$directory/README.md" | tr -d "\"'")
  [[ -n $license && $license != unknown ]] || problem "the model card states no licence" \
    "rerun the training's command with model.license=ID, such as apache-2.0, or export the checkpoint with --license ID"
  if grep -qE '(^|[^A-Za-z0-9._/-])/(home|root|tmp|scratch|work|lustre|mnt|users)/' "$directory/README.md"; then
    problem "the model card contains a path of this machine" "edit $directory/README.md"
  fi
}

# Users load adapters on top of the base that has this name on the Hub.
check_base() {
  local base
  [[ $config == adapter_config.json ]] || return 0
  base=$(sed -nE 's/^ *"base_model_name_or_path": *"([^"]*)".*/\1/p' "$directory/$config")
  [[ $base =~ ^$name/$name$ && ! -e $base ]] || problem "the base of the adapters, $base, is not a model on the Hub" \
    "export the checkpoint with \`lockstep checkpoint export FILE.h5 DIRECTORY --base ORGANISATION/NAME\`"
}

hf_problem() { # prints why `hf` cannot upload, and the remedy, on two lines; nothing if it can
  if ! command -v hf >/dev/null; then
    printf '%s\n' "there is no hf on PATH" "install it with: pip install --upgrade huggingface_hub"
  elif ! hf auth whoami >/dev/null 2>&1; then
    printf '%s\n' "hf is not logged in to the Hub" "run \`hf auth login\`, or set HF_TOKEN"
  fi
}

lockstep='' version=''
find_program
check_files
if [[ -s $directory/$config ]]; then
  check_base
  check_index
  check_weights
  check_card
fi
mapfile -t trouble < <(hf_problem)
if [[ -n $upload && -n ${trouble[*]} ]]; then problem "${trouble[0]}" "${trouble[1]}"; fi
if ((n_problems > 0)); then
  echo "nothing was uploaded (problems: $n_problems)"
  exit 1
fi

echo "$directory -> https://huggingface.co/$repository"
(cd "$directory" && stat -c '%s %n' -- *) | awk '
  {printf "%15d  %s\n", $1, $2; sum += $1}
  END {printf "%15d  bytes in %d files\n", sum, NR}'
line=(hf upload "$repository" "$directory" . --repo-type model "${private[@]}"
  --commit-message "${message:-Upload a model trained with ${version:-Lockstep}}")
if [[ -z $upload ]]; then
  if [[ -n ${trouble[*]} ]]; then echo "note: ${trouble[0]}; ${trouble[1]}"; fi
  echo "dry run, nothing was uploaded; with --upload, this is executed:"
  printf '%q ' "${line[@]}"
  echo
  exit 0
fi
timeout --foreground "${PUSH_LIMIT:-0}" "${line[@]}" || { echo "problem: hf could not upload $directory (see above); run the same command again to continue" >&2; exit 1; }
echo "uploaded to https://huggingface.co/$repository"
