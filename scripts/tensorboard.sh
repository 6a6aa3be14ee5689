#!/usr/bin/env bash
# tensorboard.sh [--background] DIRECTORY: starts TensorBoard for the runs in this directory, on port 6006 or
# TENSORBOARD_PORT. In the background, it outlives this script, and it is no error if it cannot be started.
set -euo pipefail
background=
if [[ $1 == --background ]]; then background=yes; shift; fi
directory=$1 port=${TENSORBOARD_PORT:-6006}
refuse() {
  echo "tensorboard: $1" >&2
  [[ -n $background ]] && exit 0
  exit 1
}
command -v tensorboard >/dev/null || refuse "not installed: pip install tensorboard, then run make tensorboard"
(exec 3<>"/dev/tcp/localhost/$port") 2>/dev/null && refuse "port $port is in use, perhaps by another TensorBoard; TENSORBOARD_PORT=N selects another"
mkdir -p "$directory"
if [[ -z $background ]]; then exec tensorboard --logdir "$directory" --port "$port"; fi
nohup tensorboard --logdir "$directory" --port "$port" </dev/null >"$directory/tensorboard.log" 2>&1 &
echo "TensorBoard: http://localhost:$port (kill $! ends it; its log is $directory/tensorboard.log)"
