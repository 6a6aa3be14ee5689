#!/usr/bin/env bash
# Faults while a model is exported as a directory. The previous directory stays complete until the new one is; the next
# export succeeds, and nothing is left of the failed one.
source test/support/check.sh
wrapper=$(dirname "$lockstep")/test/faults/fault_injection.so
out=$work/out/model

mkdir "$work/out" "$work/files" && echo words >"$work/files/tokenizer.json"
"$lockstep" checkpoint import test/golden/llama-story "$work/a.h5" >"$work/log" 2>&1
export_as() { "$lockstep" checkpoint export "$work/a.h5" "$out" --force --files "$work/files" --dtype "$1"; }
# faulty FAULT... DTYPE: exports with the variables of fault_injection.cpp
faulty() { env FAULT_PATH="$out" "${@:1:$#-1}" LD_PRELOAD="$wrapper" "$lockstep" checkpoint export "$work/a.h5" "$out" --force \
  --files "$work/files" --dtype "${@: -1}"; }
is_complete() { # DIRECTORY DTYPE
  [[ $(ls "$1") == $'README.md\nconfig.json\ngeneration_config.json\nmodel.safetensors\ntokenizer.json' ]] && "$lockstep" checkpoint import "$1" "$work/again.h5" --force &&
    grep -q "\"$2\"" "$1/model.safetensors"
}
only_model() { [[ $(ls "$work/out") == model ]]; }

check "exports a model" export_as bf16
check "  as a complete directory" is_complete "$out" BF16
n=1
while refused 1 '(No space left on device|Input/output error)' faulty FAULT_ERROR=ENOSPC FAULT_FIRST=$n FAULT_COUNT=0 fp32; do
  if ! only_model || ! is_complete "$out" BF16; then break; fi
  n=$((n + 1))
done >"$check_output" 2>&1
check "an error in any of $((n - 1)) operations leaves the old directory" test $n -gt 12
check "  without any, it is replaced" is_complete "$out" F32
check "  and nothing else is left" only_model

n=1 complete=0
while [[ $n -lt 100 ]]; do
  export_as bf16
  faulty FAULT_ERROR=KILL FAULT_FIRST=$n fp16 && break
  if is_complete "$out" BF16 || is_complete "$out" F16; then complete=$((complete + 1)); fi
  n=$((n + 1))
done >"$check_output" 2>&1
check "when the process is killed in any of $((n - 1)) operations" test $n -gt 12 -a $n -lt 100
check "  one of both is complete" test "$complete" == $((n - 1))
check "  and the next export removes what is left" only_model

no_exchange=(FAULT_CALLS=exchange FAULT_ERROR=EINVAL)
check "a file system that cannot exchange names" faulty "${no_exchange[@]}" fp32
check "  has the new directory" is_complete "$out" F32
check "  and nothing else" only_model
# The seventh call is the first one after the five files and the exchange.
check "  an error there is reported" refused 1 'cannot rename .*model to .*model.old.partial: Invalid argument' \
  faulty FAULT_CALLS=exchange,rename FAULT_ERROR=EINVAL FAULT_FIRST=6 FAULT_COUNT=2 bf16
check "  and the old directory stays" is_complete "$out" F32
check "  and nothing else" only_model
check "another error is reported" refused 1 'cannot exchange .*model.partial and .*model: Input/output error' \
  faulty FAULT_CALLS=exchange FAULT_ERROR=EIO bf16
check "  and the old directory stays" is_complete "$out" F32
check "  and nothing else" only_model

# stopped ARGUMENTS...: checkpoint ARGUMENTS gets Ctrl-C while it writes the first tensor of $work/stopped...
stopped() {
  touch "$work/wait"
  env FAULT_PATH="$work/stopped" FAULT_CALLS=pwrite FAULT_ERROR=WAIT FAULT_FIRST=3 FAULT_WHEN="$work/wait" LD_PRELOAD="$wrapper" \
    "$lockstep" checkpoint "$@" >"$work/log" 2>&1 &
  local process=$! end=$((SECONDS + 60)) status
  until compgen -G "$work/stopped*.partial*" || ((SECONDS > end)); do sleep 0.05; done >/dev/null
  kill -INT $process
  rm "$work/wait"
  wait $process
  status=$?
  cat "$work/log"
  [[ $status == 75 ]] && grep -q 'stopped by SIGINT: nothing was written' "$work/log" && ! compgen -G "$work/stopped*"
}
check "Ctrl-C ends an export to a directory, and nothing is left" stopped export "$work/a.h5" "$work/stopped"
check "  an export to a file" stopped export "$work/a.h5" "$work/stopped.safetensors"
check "  and an import" stopped import test/golden/llama-story "$work/stopped.h5"
finish
