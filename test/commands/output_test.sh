#!/usr/bin/env bash
# timeout: 200
# Standard output and error that are full, closed or without a reader, and terminals that cannot move the cursor.
# Results that were not written are an error, but a training carries on without its log on the terminal.
source test/support/check.sh

quickstart=jobs/configs/quickstart.yaml
tiny=("$quickstart" model.width=16 data.train=synthetic data.validation= data.image_size=8 data.synthetic_samples=96
  train.global_batch=12 train.epochs=1 cpu.threads=1 log.every_steps=1 log.tensorboard=false run.directory="$work")
export LOCKSTEP_CACHE=none

# A command whose results are lost must fail.
printf 'time_unix,rank,pid,cpu_percent,rss_mib\n1,0,1,5,100\n' >"$work/process_log.csv"
full() { refused 1 '\[system_call\]' bash -c '"$0" "$@" >/dev/full' "$lockstep" "$@" && grep -q 'cannot write to standard output' "$work/.refused"; }
check "a full output fails plan --json" full plan "$quickstart" --json
check "  plan" full plan "$quickstart"
check "  data info" full data info data/samples/cifar10_test.h5
check "  data verify" full data verify data/samples/cifar10_test.h5
check "  report memory" full report memory "$work/process_log.csv"
check "  --version" full --version
check "  --help" full --help
check "  help config" full help config
check "  and so does a closed one" refused 1 '\[system_call\]' bash -c '"$0" --version >&-' "$lockstep"
check "a reader that has read enough is no error" bash -c '"$0" help config 2>"$1" | head -1 && [[ ! -s $1 ]]' "$lockstep" "$work/errors"

# --json=FILE appears complete or not at all.
check "--json=FILE is written with standard error closed" bash -c '"$0" plan "$1" --json="$2" >/dev/null 2>&-' "$lockstep" "$quickstart" "$work/plan.json"
check "  and whole" grep -q '"total"' "$work/plan.json"
check "--json with standard error closed" bash -c '"$0" plan "$1" --json 2>&- | grep -q total' "$lockstep" "$quickstart"
limited='(ulimit -f 0; trap "" XFSZ; exec "$0" plan "$@") 2>&1 | cat; exit "${PIPESTATUS[0]}"'  # no file may grow
check "a file that cannot be written is an error" refused 1 '\[system_call\]' bash -c "$limited" "$lockstep" "$quickstart" \
  --json="$work/limited.json"
check "  with a remedy" grep -q 'remedy: correct what the message names: .* a full disk or quota' "$work/.refused"
check "  and leaves nothing" bash -c '! compgen -G "$0*"' "$work/limited.json"
cp "$work/plan.json" "$work/kept.json"
check "  or what was there" refused 1 '\[system_call\]' bash -c "$limited" "$lockstep" "$quickstart" train.global_batch=32 \
  --json="$work/kept.json"
check "  as it was" cmp "$work/plan.json" "$work/kept.json"
ln -s plan.json "$work/link.json"
check "a link stays one" bash -c '"$0" plan "$1" --json="$2" >/dev/null && [[ -L $2 ]]' "$lockstep" "$quickstart" "$work/link.json"
check "a device can be written to" "$lockstep" plan "$quickstart" --json=/dev/null

# A training carries on when nobody reads its standard error, and log.txt is complete.
check "training survives its reader" bash -c 'set -o pipefail; { "$0" train "${@:2}" run.name=reader; echo $? >"$1"; } 2>&1 | head -2 >/dev/null' \
  "$lockstep" "$work/reader.status" "${tiny[@]}"
check "  with status 0" grep -qx 0 "$work/reader.status"
check "  and done in RUN/status" grep -qx done "$work/reader/status"
check "  and the log in log.txt" grep -q 'step 8/8' "$work/reader/log.txt"
check "training without standard error" bash -c '"$0" train "${@:1}" run.name=closed 2>&- >&-' "$lockstep" "${tiny[@]}"
check "  writes its log only to log.txt" grep -q 'step 8/8' "$work/closed/log.txt"
check "  and not into another file" bash -c '! grep -l "step 8/8" -r "$0" | grep -v log.txt' "$work/closed"

# Escape sequences appear only on a terminal that can move the cursor. script(1) provides one.
if command -v script >/dev/null; then
  on_terminal() { env "${@:2}" script -qec "$lockstep train ${tiny[*]} run.name=$1" /dev/null >"$work/$1.screen" 2>&1 </dev/null; }
  escapes() { grep -q $'\033' "$work/$1.screen"; }
  check "a terminal" on_terminal cursor TERM=xterm
  check "  shows a progress bar" escapes cursor
  check "TERM=dumb" on_terminal dumb TERM=dumb
  check "  gets plain lines" bash -c '! grep -q "$1" "$0" && grep -q "step 8/8" "$0"' "$work/dumb.screen" $'\033'
  check "NO_COLOR" on_terminal plain TERM=xterm NO_COLOR=1
  check "  gets plain lines" bash -c '! grep -q "$1" "$0" && grep -q "step 8/8" "$0"' "$work/plain.screen" $'\033'
fi

finish
