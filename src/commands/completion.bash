# Completion of lockstep for bash. `lockstep completion bash` prints this file, and `make install` installs it where
# bash-completion finds it. Without an installation: source <(lockstep completion bash)
#
# The commands, options and keys come from the program that is being completed: `lockstep completion bash --tables`
# prints them once per shell, one per line, with tabs between the columns:
#   command  PATH  COMMANDS  OPTIONS  ARGUMENT...      PATH is "lockstep data import"; an ARGUMENT is a kind, see below
#   option   PATH OPTION  KIND                         options that take a value
#   key      KEY  KIND                                 keys of a configuration
# A kind tells what to offer: CONFIG (keys and YAML files), MODEL (keys and all files), FILE, KEY, or the words themselves. It is `-` for values that
# cannot be listed, such as numbers. An ARGUMENT `...` repeats the one before it.

_lockstep_load() { # PROGRAM: reads its tables
  local what name rest
  declare -gA _lockstep_commands=() _lockstep_kinds=()
  _lockstep_keys=
  while IFS=$'\t' read -r what name rest; do
    case $what in
      command) _lockstep_commands[$name]=$rest ;;
      option) _lockstep_kinds[$name]=$rest ;;
      key)
        _lockstep_kinds[$name]=$rest
        _lockstep_keys+=" $name" ;;
    esac
  done < <(command "$1" completion bash --tables 2>/dev/null)
  if [[ -n $_lockstep_keys ]]; then _lockstep_loaded=$1; fi
}

_lockstep_command() { # PATH: sets commands, options, arguments
  local -a columns
  IFS=$'\t' read -ra columns <<<"${_lockstep_commands[$1]}"
  commands=${columns[0]} options=${columns[1]} arguments=("${columns[@]:2}")
  if [[ $commands == - ]]; then commands=; fi
}

_lockstep_value() { # PATH OPTION: sets kind; fails where the option takes no value
  [[ ${_lockstep_kinds[$1]+set} ]] || return 1
  _lockstep_key "$1"
}

_lockstep_key() { # KEY, or PATH OPTION: sets kind
  kind=${_lockstep_kinds[$1]-}
  if [[ $kind == - ]]; then kind=; fi
}

_lockstep_offer() { # KIND TEXT: offers what begins with TEXT
  local file
  case $1 in
    CONFIG | MODEL)
      mapfile -t COMPREPLY < <(compgen -S = -W "$_lockstep_keys" -- "$2")
      if ((${#COMPREPLY[@]})); then compopt -o nospace 2>/dev/null; fi
      while read -r file; do
        if [[ -d $file ]]; then compopt -o filenames 2>/dev/null; fi
        if [[ -d $file || $file == *.yaml || $file == *.yml || $1 == MODEL ]]; then COMPREPLY+=("$file"); fi
      done < <(compgen -f -- "$2") ;;
    FILE)
      mapfile -t COMPREPLY < <(compgen -f -- "$2")
      compopt -o filenames 2>/dev/null ;;
    KEY) mapfile -t COMPREPLY < <(compgen -W "$_lockstep_keys" -- "$2") ;;
    *) mapfile -t COMPREPLY < <(compgen -W "$1" -- "$2") ;;
  esac
}

_lockstep() {
  # Split only at blanks, since bash has also split the line at each `=`.
  local line=${COMP_LINE:0:COMP_POINT} path=lockstep option='' kind='' word current
  local commands='' options='' others='' n_given=0
  local -a before arguments=()
  current=${line##*[[:space:]]}
  read -ra before <<<"${line%"$current"}"
  COMPREPLY=()
  local program=${before[0]/#~\//~/}
  if [[ ${_lockstep_loaded-} != "$program" ]]; then _lockstep_load "$program"; fi
  _lockstep_command "$path"
  for word in "${before[@]:1}"; do
    if [[ -n $option ]]; then
      option=
    elif [[ $word == -* ]]; then
      if _lockstep_value "$path $word"; then option=$word; fi
    elif [[ " $commands " == *" $word "* ]]; then
      path+=" $word"
      _lockstep_command "$path"
    else
      ((++n_given))
    fi
  done
  kind=
  if [[ -n $option ]]; then
    _lockstep_value "$path $option"
  elif [[ $current == -*=* ]]; then
    _lockstep_value "$path ${current%%=*}" || kind=FILE
  elif [[ $current == -* ]]; then
    kind=$options
  elif [[ -n $commands ]]; then
    kind=$commands
    # `report memory` and `report RUN`: the commands, and what may stand in their place.
    if ((n_given < ${#arguments[@]})); then others=${arguments[n_given]}; fi
  elif ((n_given < ${#arguments[@]})); then
    kind=${arguments[n_given]}
  elif ((${#arguments[@]})) && [[ ${arguments[-1]} == ... ]]; then
    kind=${arguments[-2]}
  fi
  if [[ $kind == ... ]]; then kind=${arguments[-2]}; fi
  if [[ $kind == - ]]; then kind=; fi
  if [[ $current == *=* && ($current == -* || $kind == CONFIG || $kind == MODEL) ]]; then
    if [[ $current != -* ]]; then _lockstep_key "${current%%=*}"; fi
    _lockstep_offer "$kind" "${current#*=}"
    # Where `=` ends a word, bash replaces only what is behind it.
    if [[ $COMP_WORDBREAKS != *=* ]]; then COMPREPLY=("${COMPREPLY[@]/#/"${current%%=*}="}"); fi
  else
    _lockstep_offer "$kind" "$current"
    if [[ -n $others ]]; then
      local -a offered=("${COMPREPLY[@]}")
      _lockstep_offer "$others" "$current"
      COMPREPLY+=("${offered[@]}")
    fi
  fi
}
complete -F _lockstep lockstep
