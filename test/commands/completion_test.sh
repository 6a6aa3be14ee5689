#!/usr/bin/env bash
# cores: 0
# lockstep completion: what bash and zsh offer, given their variables, and in real interactive shells.
source test/support/check.sh
"$lockstep" completion bash >"$work/script"
"$lockstep" completion bash --tables >"$work/tables"
export PATH=$(cd "$(dirname "$lockstep")" && pwd):$PATH  # the script gets commands and keys from `lockstep`
check "the script is bash" bash -n "$work/script"
check "the script is the file that is installed" cmp src/commands/completion.bash "$work/script"
check "it is registered for lockstep" bash -c "source '$work/script'; complete -p lockstep | grep -q -- '-F _lockstep lockstep'"
check "another shell is refused" refused 2 'SHELL: fish not in \{bash,zsh\}' "$lockstep" completion fish

mkdir -p "$work/here/folder"
touch "$work/here/one.yaml" "$work/here/two.yml" "$work/here/other.txt" "$work/here/train.h5" "$work/here/folder/x.yaml"
# offers LINE REPLIES: with the cursor at the end of the line, these replies are offered, in any order
offers() {
  local got
  got=$(cd "$work/here" && COMP_LINE=$1 bash -c "source '$work/script'; COMP_WORDBREAKS=\${WORDBREAKS-\$' \\t\\n\"'\\''><=;|&(:'}
    COMP_POINT=\${#COMP_LINE}; _lockstep; echo \${COMPREPLY[@]}" | tr ' ' '\n' | sort | xargs)
  if [[ $got == "$(tr ' ' '\n' <<<"$2" | sort | xargs)" ]]; then good "offers: $1|"; else bad "offers: $1|"; echo "  got: $got"; fi
}
offers 'lockstep tr' 'train'
offers 'lockstep ' "$("$lockstep" trian 2>&1 | sed -n 's/.*the commands are //p' | tr -d ,)"
offers 'lockstep --v' '--version'
offers 'lockstep data ' 'import info verify show encode decode'
offers 'lockstep checkpoint ver' 'verify'
offers 'lockstep train --' '--help --fresh --allow-change --deepspeed --dry-run --print-config'
offers 'lockstep train optimizer.k' 'optimizer.kind='
offers 'lockstep train trace' 'trace='
offers 'lockstep train one.yaml optimizer.kind=' 'sgd adamw lars'
offers 'lockstep train one.yaml optimizer.kind=a' 'adamw'
offers 'lockstep train one.yaml trace=' 'true false'
offers 'lockstep train model.depth=' '18 34 50 101 152'
offers 'lockstep train cpu.threads=' 'auto'
offers 'lockstep train data.augment=' '[crop] [flip] [resized_crop] [trivial_augment]'
offers 'lockstep train run.seed=' ''
offers 'lockstep train data.train=tr' 'train.h5'
offers 'lockstep plan t' "two.yml $(sed -n 's/^key\t\(t[^\t]*\)\t.*/\1=/p' "$work/tables" | xargs)"
offers 'lockstep plan fo' 'folder'
offers 'lockstep plan folder/' 'folder/x.yaml'
offers 'lockstep plan one.yaml --ranks ' ''
offers 'lockstep plan one.yaml --ranks 4 --no' '--nodes'
offers 'lockstep train one.yaml --allow-change optimizer.ki' 'optimizer.kind'
offers 'lockstep train --allow-change optimizer.kind o' 'one.yaml optimizer.kind= optimizer.learning_rate=
  optimizer.learning_rate_batch= optimizer.groups= optimizer.momentum= optimizer.nesterov= optimizer.weight_decay= optimizer.decay_norms_and_biases=
  optimizer.decay_norms= optimizer.beta1= optimizer.beta2= optimizer.epsilon= optimizer.moments= optimizer.masters=
  optimizer.trust_coefficient='
offers 'lockstep evaluate one.yaml --checkpoint tra' 'train.h5'
offers 'lockstep evaluate train.h' 'train.h5'
offers 'lockstep evaluate --cho' '--choices'
offers 'lockstep evaluate data.validation_r' 'data.validation_resize='
offers 'lockstep evaluate one.yaml --json=tra' 'train.h5'
offers 'lockstep evaluate tr' "train.h5 $(sed -n 's/^key\t\(tr[^\t]*\)\t.*/\1=/p' "$work/tables" | xargs)"
offers 'lockstep evaluate one.yaml trace=' 'true false'
offers 'lockstep generate one.yaml --top' '--top-k --top-p'
offers 'lockstep generate fol' 'folder'
offers 'lockstep generate folder --prompts oth' 'other.txt'
offers 'lockstep generate folder --prompt o' ''
offers 'lockstep generate folder --beams ' ''
offers 'lockstep data import ' 'cifar10 mnist imagefolder tiny-imagenet webdataset text chat'
offers 'lockstep data import text --to' '--tokenizer'
offers 'lockstep data import text one.yaml oth' 'other.txt'
offers 'lockstep data import text --tokenizer tr' 'train.h5'
offers 'lockstep data import chat oth' 'other.txt'
offers 'lockstep data import chat other.txt out.h5 --t' '--tokenizer --template --too-long'
offers 'lockstep data import chat other.txt out.h5 --template oth' 'other.txt'
offers 'lockstep data import chat other.txt out.h5 --too-long ' 'truncate drop'
offers 'lockstep data import chat other.txt out.h5 --fraction ' ''
offers 'lockstep data show tr' 'train.h5'
offers 'lockstep data show train.h5 --colour ' 'auto always never'
offers 'lockstep data import cifar10 fol' 'folder'
offers 'lockstep data import cifar10 . out.h5 --split ' 'train val test'
offers 'lockstep report ' 'memory mlflow folder one.yaml other.txt train.h5 two.yml'
offers 'lockstep report fo' 'folder'
offers 'lockstep report folder --fi' '--figures'
offers 'lockstep report folder --js' '--json'
offers 'lockstep report mlflow folder --' '--help --uri --experiment --dry-run'
offers 'lockstep train log.mlflow' 'log.mlflow= log.mlflow_experiment='
offers 'lockstep report memory one.yaml oth' 'other.txt'
offers 'lockstep doctor --' '--help --quick --json --runs --data --device'
offers 'lockstep doctor --device ' 'auto cpu cuda'
offers 'lockstep doctor --runs fol' 'folder'
offers 'lockstep top fol' 'folder'
offers 'lockstep completion ' 'bash zsh'
offers 'lockstep completion bash --' '--help'
# The tables come from the program that is called.
offers "$lockstep tr" 'train'
offers 'nowhere/lockstep tr' ''
offers 'lockstep help con' 'config'
offers 'lockstep help config run' 'run run.name run.directory run.seed run.check'
offers 'lockstep help config run cuda' 'cuda cuda.graph cuda.weight_gradient_stream cuda.tuning_seconds'
offers 'lockstep help checkpoint ver' 'verify'
offers 'lockstep nonsense x' ''
# A shell in which `=` does not end a word replaces all of key=value.
WORDBREAKS=' ' offers 'lockstep train optimizer.kind=a' 'optimizer.kind=adamw'

# Every key of the table is offered, and every choice of a key is accepted.
check "all keys" diff <("$lockstep" help config | sed '1,/^  key /d' | grep -oE '^[*! ] [a-z0-9_.]+ ' | tr -d '*! ' | sort) \
  <(bash -c "source '$work/script'; _lockstep_load lockstep; printf '%s\n' \$_lockstep_keys" | sort)
each_word() {
  local key word
  source "$work/script"
  _lockstep_load "$lockstep"
  for key in $_lockstep_keys; do
    _lockstep_key "$key"
    [[ $kind == FILE ]] && continue
    for word in $kind; do
      "$lockstep" plan "$key=$word" 2>&1 | grep -q config_invalid &&
        ! "$lockstep" plan "$key=$word" 2>&1 | grep -q 'data.train: expected the path' && echo "$key=$word is refused" && return 1
    done
  done
  return 0
}
check "all choices are accepted" each_word

# As typed: readline inserts the reply after the `=` without repeating the key.
typed() { # typed KEYS LINE: the line that bash -i then runs
  (cd "$work/here" && printf '%b\n' "PS1=; lockstep() { printf '<%s>' \"\$@\"; }; source '$work/script'\n$1\nexit\n" |
    script -qec "bash --norc --noprofile -i" /dev/null 2>&1 | tr -d '\r' | grep -F -- "$2")
}
if command -v script >/dev/null; then
  check "typed: lockstep tr TAB" typed 'lockstep tr\tx' '<train><x>'
  check "typed: optimizer.kind=ad TAB" typed 'lockstep train optimizer.kind=ad\t x' '<train><optimizer.kind=adamw><x>'
  check "typed: a key gets = and no blank" typed 'lockstep train optimizer.ki\tsgd' '<train><optimizer.kind=sgd>'
fi
# zsh, with functions in place of those that only work in its line editor.
if command -v zsh >/dev/null; then
  "$lockstep" completion zsh >"$work/script.zsh"
  check "the script of zsh is the file that is installed" cmp src/commands/completion.zsh "$work/script.zsh"
  check "  and is zsh" zsh -n "$work/script.zsh"
  cat >"$work/offer.zsh" <<'END'
compdef() { }
source $1
compadd() {
  local suffix= name
  while [[ $1 != -- ]]; do if [[ $1 == -S ]]; then suffix=$2; fi; shift; done
  for name in "${@:2}"; do if [[ $name == $PREFIX* ]]; then print -r -- $name$suffix; fi; done
}
compset() { PREFIX=${PREFIX#*=} }
_files() {
  local file
  for file in $PREFIX*(N); do if [[ $# == 0 || -d $file || $file == *.(yaml|yml) ]]; then print -r -- $file; fi; done
}
words=("${(@s: :)2}") CURRENT=${#words} PREFIX=${words[-1]}
_lockstep
END
  zsh_offers() {
    local got
    got=$(cd "$work/here" && zsh -f "$work/offer.zsh" "$work/script.zsh" "$1" | sort | xargs)
    if [[ $got == "$(tr ' ' '\n' <<<"$2" | sort | xargs)" ]]; then good "zsh offers: $1|"; else bad "zsh offers: $1|"; echo "  got: $got"; fi
  }
  zsh_offers 'lockstep tr' 'train'
  zsh_offers 'lockstep data ver' 'verify'
  zsh_offers 'lockstep --v' '--version'
  zsh_offers 'lockstep train --fr' '--fresh'
  zsh_offers 'lockstep train optimizer.k' 'optimizer.kind='
  zsh_offers 'lockstep train one.yaml optimizer.kind=' 'sgd adamw lars'
  zsh_offers 'lockstep train one.yaml optimizer.kind=a' 'adamw'
  zsh_offers 'lockstep train data.augment=[f' '[flip]'
  zsh_offers 'lockstep train run.seed=' ''
  zsh_offers 'lockstep train data.train=tr' 'train.h5'
  zsh_offers 'lockstep plan on' 'one.yaml'
  zsh_offers 'lockstep evaluate oth' 'other.txt'
  zsh_offers 'lockstep evaluate one.yaml trace=' 'true false'
  zsh_offers 'lockstep plan fo' 'folder'
  zsh_offers 'lockstep train --allow-change optimizer.ki' 'optimizer.kind'
  zsh_offers 'lockstep train --allow-change optimizer.kind optimizer.b' 'optimizer.beta1= optimizer.beta2='
  zsh_offers 'lockstep data import cif' 'cifar10'
  zsh_offers 'lockstep data import chat oth' 'other.txt'
offers 'lockstep data import chat other.txt out.h5 --t' '--tokenizer --template --too-long'
offers 'lockstep data import chat other.txt out.h5 --template oth' 'other.txt'
offers 'lockstep data import chat other.txt out.h5 --too-long ' 'truncate drop'
offers 'lockstep data import chat other.txt out.h5 --fraction ' ''
offers 'lockstep data show tr' 'train.h5'
offers 'lockstep data show train.h5 --colour ' 'auto always never'
offers 'lockstep data import cifar10 fol' 'folder'
  zsh_offers 'lockstep data import cifar10 . out.h5 --split v' 'val'
  zsh_offers 'lockstep plan one.yaml --ranks ' ''
  zsh_offers 'lockstep plan one.yaml --json=tra' 'train.h5'
  zsh_offers 'lockstep help config cuda' 'cuda cuda.graph cuda.weight_gradient_stream cuda.tuning_seconds'
  zsh_offers 'lockstep completion ' 'bash zsh'
  zsh_offers "$lockstep tr" 'train'
  zsh_offers 'nowhere/lockstep tr' ''
  zsh_offers 'lockstep nonsense x' ''
  zsh_typed() { # zsh_typed KEYS LINE: the line that zsh -i then runs
    (cd "$work/here" && { sleep 0.5; printf '%b\n' "PS1=; autoload -Uz compinit; compinit -u -D; source '$work/script.zsh'\nlockstep() { printf '<%s>' \"\$@\"; print }\n$1\nexit\n"; sleep 1; } |
      TERM=vt100 script -qec "zsh -f -i" /dev/null 2>&1 | tr -d '\r' | grep -F -- "$2")
  }
  if command -v script >/dev/null; then
    check "typed in zsh: lockstep tr TAB" zsh_typed 'lockstep tr\tx' '<train><x>'
    check "typed in zsh: optimizer.kind=ad TAB" zsh_typed 'lockstep train optimizer.kind=ad\t x' '<train><optimizer.kind=adamw><x>'
    check "typed in zsh: a key gets = and no blank" zsh_typed 'lockstep train optimizer.ki\tsgd' '<train><optimizer.kind=sgd>'
    check "typed in zsh: a file" zsh_typed 'lockstep train data.train=tra\t x' '<train><data.train=train.h5><x>'
  fi
fi
finish
