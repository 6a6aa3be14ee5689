# Publishing from a job, for job.sh, which sources this file: PUSH_TO=ORGANISATION/NAME uploads the model to the Hugging Face
# Hub when the training is done, and with PUSH_EVERY=epoch also that of each epoch while the training goes on, as a commit with
# the name of its checkpoint. The uploads run in the background on the batch node. A failure is reported, and changes neither
# the run nor the status of the job. RUN/published lists what was uploaded, so that a later start does not repeat it.
#
# In the terms of transformers' Trainer: PUSH_TO is push_to_hub with hub_model_id, and PUSH_EVERY=epoch is
# hub_strategy=every_save with save_strategy=epoch.

push_interval=5 # seconds between looks for new epochs
push_limit=3600 # seconds: an upload that hangs must not keep the nodes

check_publishing() {
  local part='[A-Za-z0-9][A-Za-z0-9._-]*'
  [[ -z ${PUSH_TO:-} || $PUSH_TO =~ ^$part/$part$ ]] ||
    problem "PUSH_TO is $PUSH_TO, which is no repository" "set PUSH_TO=ORGANISATION/NAME, such as my-team/my-model"
  [[ -z ${PUSH_EVERY:-} || (${PUSH_EVERY:-} == epoch && -n ${PUSH_TO:-}) ]] ||
    problem "PUSH_EVERY is ${PUSH_EVERY:-}${PUSH_TO:+, which is no interval}" \
      "set PUSH_EVERY=epoch together with PUSH_TO=ORGANISATION/NAME, or leave it out: then the model is published at the end"
}

can_publish() { command -v hf >/dev/null && timeout --foreground 60 hf auth whoami >/dev/null 2>&1; }
how_to_publish() {
  echo "on a node with a network, where hf is installed and logged in: $(shell_words "$jobs/push_to_hub.sh" "$(realpath "$run")" "$PUSH_TO" --upload)"
}

is_published() { # NAME: or it cannot be published any more
  grep -qxsF -e "$PUSH_TO $1" -e "$PUSH_TO $1 removed" -- "$run/published"
}

# Uploads a model unless that was done before. `hf` might repeat its environment, which has the token.
push() { # RUN-OR-DIRECTORY NAME
  local output
  if is_published "$2"; then return 0; fi
  if output=$(LOCKSTEP=$lockstep PUSH_LIMIT=$push_limit nice -n 19 "$jobs/push_to_hub.sh" "$1" "$PUSH_TO" --upload \
    --message="$2" 2>&1 </dev/null) && echo "$PUSH_TO $2" >>"$run/published"; then
    report "$(date '+%F %T') published $2 at https://huggingface.co/$PUSH_TO"
  else
    if [[ -n ${HF_TOKEN:-} ]]; then output=${output//"$HF_TOKEN"/HF_TOKEN}; fi
    report "$(date '+%F %T') $2 was not published; the run is not affected: $(tail -n 4 <<<"$output" | tr '\n' ' ')"
    return 1
  fi
}

# Prints the checkpoints of the ends of epochs, in their order. Their lines appear when the files are complete.
checkpoints_of_epochs() {
  awk 'match($0, /"step":[0-9]+/) {step = substr($0, RSTART + 7, RLENGTH - 7)}
    /^\{"event":"epoch"/ {ends_epoch[step]}
    /^\{"event":"checkpoint"/ && match($0, /"path":"[^"]*"/) {path[step] = substr($0, RSTART + 8, RLENGTH - 9)}
    END {for (step in path) if (step in ends_epoch) print step, path[step]}' "$run/metrics.jsonl" 2>/dev/null |
    sort -n | cut -d' ' -f2-
}

push_epochs() { # those that are not published yet; each is tried once
  local checkpoint name answer
  while IFS= read -r checkpoint; do
    name=$(basename "$checkpoint" .h5)
    if is_published "$name" || [[ -n ${tried[$name]:-} ]]; then continue; fi
    tried[$name]=yes
    rm -rf "$run/publishing"
    if answer=$(CUDA_VISIBLE_DEVICES='' nice -n 19 "$lockstep" checkpoint export "$checkpoint" "$run/publishing" 2>&1 </dev/null); then
      push "$run/publishing" "$name"
    elif [[ ! -e $checkpoint ]]; then
      report "$name was removed before it could be published: raise checkpoint.keep"
      echo "$PUSH_TO $name removed" >>"$run/published"
    else
      report "$name was not published; the run is not affected: $(refusal <<<"$answer")"
    fi
  done < <(checkpoints_of_epochs)
  rm -rf "$run/publishing"
}

publish_epochs() { # starts doing so in the background
  if [[ ${PUSH_EVERY:-} != epoch ]]; then return; fi
  set -m # a process group of its own, so that it can be ended with what it has started
  (
    trap - USR2 TERM INT
    declare -A tried
    if ! can_publish; then
      report "the epochs are not published, because the Hub cannot be reached from here; the model can be published later"
      exit
    fi
    while sleep "$push_interval"; do push_epochs; done
  ) &
  publisher=$!
  set +m
}

# What is being uploaded is uploaded again when the run resumes, or at the end.
end_publisher() {
  if [[ -z $publisher ]]; then return; fi
  kill -TERM -- "-$publisher" 2>/dev/null
  wait "$publisher" 2>/dev/null
  publisher=''
}

# The run is done. Its last checkpoint is RUN/model. A signal, near the time limit, ends the uploads.
publish() {
  if [[ -z ${PUSH_TO:-} ]]; then return; fi
  local last status
  last=$(basename "$(newest_checkpoint)" .h5)
  if is_published "$last"; then return; fi
  set -m
  (
    trap - USR2 TERM INT
    declare -A tried=([$last]=yes)
    can_publish || exit 1
    if [[ ${PUSH_EVERY:-} == epoch ]]; then push_epochs; fi
    push "$run" "$last"
  ) &
  publisher=$!
  set +m
  until wait "$publisher"; status=$?; [[ -n $received ]] || ! kill -0 "$publisher" 2>/dev/null; do :; done
  end_publisher
  if ((status > 0)); then report "to publish the model, run this $(how_to_publish)"; fi
}
