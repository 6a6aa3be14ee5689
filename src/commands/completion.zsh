#compdef lockstep
# Completes lockstep's commands, options and configuration keys in zsh:
#
#   source <(lockstep completion zsh)
#
# or, for all shells, put it into a folder of $fpath under the name _lockstep. The tables are those that
# completion.bash explains; `lockstep completion zsh --tables` prints them, once per shell and program.

_lockstep_load() { # PROGRAM: reads its tables
  local what name rest
  typeset -gA _lockstep_commands _lockstep_kinds
  typeset -ga _lockstep_keys
  _lockstep_commands=() _lockstep_kinds=() _lockstep_keys=()
  while IFS=$'\t' read -r what name rest; do
    case $what in
      command) _lockstep_commands[$name]=$rest ;;
      option) _lockstep_kinds[$name]=$rest ;;
      key) _lockstep_kinds[$name]=$rest; _lockstep_keys+=($name) ;;
    esac
  done < <(command $1 completion zsh --tables 2>/dev/null)
  if (( $#_lockstep_keys )); then typeset -g _lockstep_loaded=$1; fi
}

_lockstep_select() { # PATH: sets commands, options, arguments
  local -a columns
  columns=("${(@ps:\t:)_lockstep_commands[$1]}")
  commands=(${=columns[1]:#-}) options=(${=columns[2]:#-}) arguments=(${columns[3,-1]})
}

_lockstep_offer() { # KIND: offers what begins with the word so far
  case $1 in
    CONFIG)
      compadd -S '=' -- $_lockstep_keys
      _files -g '*.(yaml|yml)' ;;
    MODEL)
      compadd -S '=' -- $_lockstep_keys
      _files ;;
    FILE) _files ;;
    KEY) compadd -- $_lockstep_keys ;;
    -|'') ;;
    *) compadd -- ${=1} ;;
  esac
}

_lockstep() {
  local path_of=lockstep option= kind= word current=$PREFIX program=${words[1]/#\~\//$HOME/}
  local -a commands options arguments
  local -i n_given=0
  if [[ ${_lockstep_loaded-} != $program ]]; then _lockstep_load $program; fi
  _lockstep_select $path_of
  for word in "${(@)words[2,CURRENT-1]}"; do
    if [[ -n $option ]]; then
      option=
    elif [[ $word == -* ]]; then
      if (( ${+_lockstep_kinds[$path_of $word]} )); then option=$word; fi
    elif (( ${commands[(Ie)$word]} )); then
      path_of+=" $word"
      _lockstep_select $path_of
    else
      (( ++n_given ))
    fi
  done
  if [[ -n $option ]]; then
    kind=${_lockstep_kinds[$path_of $option]}
  elif [[ $current == -*=* ]]; then
    kind=${_lockstep_kinds[$path_of ${current%%=*}]-FILE}
  elif [[ $current == -* ]]; then
    kind=$options
  elif (( $#commands )); then
    kind=$commands
    if (( $#arguments )); then compadd -- $commands; kind=$arguments[1]; fi
  elif (( n_given < $#arguments )); then
    kind=$arguments[n_given+1]
    if [[ $kind == ... ]]; then kind=$arguments[-2]; fi
  elif [[ ${arguments[-1]-} == ... ]]; then
    kind=$arguments[-2]
  fi
  if [[ $current == *=* && ( $current == -* || $kind == CONFIG || $kind == MODEL ) ]]; then
    if [[ $current != -* ]]; then kind=${_lockstep_kinds[${current%%=*}]-}; fi
    compset -P '*='
  fi
  _lockstep_offer "$kind"
}

if [[ ${funcstack[1]-} == _lockstep ]]; then # zsh loads the file as this function
  _lockstep "$@"
else
  if (( ! $+functions[compdef] )); then autoload -Uz compinit && compinit; fi
  compdef _lockstep lockstep
fi
