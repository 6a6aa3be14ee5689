// lockstep completion bash: a script that completes commands, options, and the keys of a configuration with the words
// that they take. Its lists are made of the tables that `--help` and `help config` are made of; its code is below.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <string>
#include <string_view>

#include "commands/commands.h"
#include "config/table.h"
#include "lockstep/error.h"

namespace lockstep::commands {
namespace {

// What follows the lists. A kind is CONFIG, FILE, KEY, or the words themselves; empty: nothing to offer, as of numbers.
constexpr std::string_view kScript = R"bash(
_lockstep_offer() { # KIND TEXT: what begins with TEXT
  local file
  case $1 in
    CONFIG)
      mapfile -t COMPREPLY < <(compgen -S = -W "$_lockstep_keys" -- "$2")
      if ((${#COMPREPLY[@]})); then compopt -o nospace 2>/dev/null; fi
      while read -r file; do
        if [[ -d $file ]]; then compopt -o filenames 2>/dev/null; fi
        if [[ -d $file || $file == *.yaml || $file == *.yml ]]; then COMPREPLY+=("$file"); fi
      done < <(compgen -f -- "$2") ;;
    FILE)
      mapfile -t COMPREPLY < <(compgen -f -- "$2")
      compopt -o filenames 2>/dev/null ;;
    KEY) mapfile -t COMPREPLY < <(compgen -W "$_lockstep_keys" -- "$2") ;;
    *) mapfile -t COMPREPLY < <(compgen -W "$1" -- "$2") ;;
  esac
}

_lockstep() {
  # By blanks alone: bash has cut the line at each = too.
  local line=${COMP_LINE:0:COMP_POINT} path=lockstep option='' kind='' word current
  local commands='' options='' n_given=0
  local -a before arguments=()
  current=${line##*[[:space:]]}
  read -ra before <<<"${line%"$current"}"
  COMPREPLY=()
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
  if [[ -n $option ]]; then
    _lockstep_value "$path $option"
  elif [[ $current == -*=* ]]; then
    _lockstep_value "$path ${current%%=*}" || kind=FILE
  elif [[ $current == -* ]]; then
    kind=$options
  elif [[ -n $commands ]]; then
    kind=$commands
  elif ((n_given < ${#arguments[@]})); then
    kind=${arguments[n_given]}
  elif ((${#arguments[@]})) && [[ ${arguments[-1]} == ... ]]; then
    kind=${arguments[-2]}
  fi
  if [[ $kind == ... ]]; then kind=${arguments[-2]}; fi
  if [[ $current == *=* && ($current == -* || $kind == CONFIG) ]]; then
    if [[ $kind == CONFIG ]]; then _lockstep_key "${current%%=*}"; fi
    _lockstep_offer "$kind" "${current#*=}"
    # Where = ends a word, bash replaces what stands behind it alone.
    if [[ $COMP_WORDBREAKS != *=* ]]; then COMPREPLY=("${COMPREPLY[@]/#/"${current%%=*}="}"); fi
  else
    _lockstep_offer "$kind" "$current"
  fi
}
complete -F _lockstep lockstep
)bash";

/// "'it'\''s'"
std::string in_quotes(const std::string& text) {
  std::string out = "'";
  for (const char c : text) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out + "'";
}

void append(std::string& list, const std::string& word) { list += (list.empty() ? "" : " ") + word; }

/// "TEXT:{train,val,test}", as `--help` shows it, is the words; a number is nothing; else it is a file.
std::string kind_of(const CLI::Option& option) {
  const std::string type = option.get_type_name();
  const auto open = type.find('{'), close = type.rfind('}');
  if (open != std::string::npos && close != std::string::npos && open < close) {
    std::string words = type.substr(open + 1, close - open - 1);
    std::ranges::replace(words, ',', ' ');
    return words;
  }
  if (option.get_positional() && option.get_name(true) == "CONFIG") return "CONFIG";
  if (type.starts_with("KEY")) return "KEY";
  for (const std::string_view number : {"INT", "UINT", "FLOAT", "N", "BYTES", "R,G,B"})
    if (type == number || type.starts_with(std::string(number) + ":") || type.starts_with(std::string(number) + " "))
      return "";
  return "FILE";
}

/// The words that a key may take, "sgd adamw lars"; of a list, "[crop] [flip]".
std::string kind_of(const config::Key& key) {
  if (key.is_path) return "FILE";
  constexpr std::string_view kSomeOf = "some of [", kOr = " | ";
  const bool is_list = key.takes.starts_with(kSomeOf);
  if (!is_list && key.type != "one of") return "";
  std::string_view rest = key.takes;
  if (is_list) rest = rest.substr(kSomeOf.size(), rest.size() - kSomeOf.size() - 1);
  const std::string_view between = is_list ? std::string_view(", ") : kOr;
  std::string words;
  while (!rest.empty()) {
    const auto end = std::min(rest.find(between), rest.size());
    const std::string word(rest.substr(0, end));
    rest.remove_prefix(std::min(end + between.size(), rest.size()));
    if (word.find_first_of(" [") == std::string::npos) append(words, is_list ? "[" + word + "]" : word);  // no range
  }
  return words;
}

struct Lists {
  std::string commands, values;  // cases of the two functions
};

void describe(const CLI::App& app, const std::string& path, const std::string& all_commands, Lists& lists) {
  std::string commands, options, arguments;
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; }))
    append(commands, command->get_name());
  for (const CLI::Option* option : app.get_options()) {
    const bool takes_value = option->get_items_expected_max() > 0;
    if (!option->nonpositional()) {
      const bool is_topic = path == "lockstep help";
      append(arguments, in_quotes(is_topic ? "config " + all_commands : kind_of(*option)));
      if (option->get_items_expected_max() > 1) append(arguments, "...");
    }
    for (const std::string& name : option->get_lnames()) {
      append(options, "--" + name);
      if (takes_value)
        lists.values += fmt::format("    {}) kind={} ;;\n", in_quotes(fmt::format("{} --{}", path, name)),
                                    in_quotes(kind_of(*option)));
    }
  }
  lists.commands += "    " + in_quotes(path) + ")\n      commands=" + in_quotes(commands) +
                    "\n      options=" + in_quotes(options) + "\n      arguments=(" + arguments + ") ;;\n";
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; }))
    describe(*command, path + " " + command->get_name(), all_commands, lists);
}

std::string bash_script(const CLI::App& app) {
  std::string all_commands, keys, kinds;
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; }))
    append(all_commands, command->get_name());
  for (const config::Key& key : config::table()) {
    append(keys, key.name);
    if (const std::string kind = kind_of(key); !kind.empty())
      kinds += "    " + key.name + ") kind=" + in_quotes(kind) + " ;;\n";
  }
  Lists lists;
  describe(app, "lockstep", all_commands, lists);
  return "# Completion of lockstep for bash, written by `lockstep completion bash`: source it, or put it where\n"
         "# bash-completion looks, such as ~/.local/share/bash-completion/completions/lockstep.\n\n"
         "_lockstep_command() { # PATH: sets commands, options, arguments\n  case $1 in\n" +
         lists.commands +
         "  esac\n}\n\n"
         "_lockstep_value() { # PATH OPTION: sets kind; fails where the option takes no value\n  case $1 in\n" +
         lists.values +
         "    *) return 1 ;;\n  esac\n}\n\n"
         "_lockstep_key() { # KEY: sets kind\n  case $1 in\n" +
         kinds + "    *) kind= ;;\n  esac\n}\n\n_lockstep_keys=" + in_quotes(keys) + "\n" + std::string(kScript);
}

}  // namespace

void add_completion(CLI::App& app, Run& run) {
  auto shell = std::make_shared<std::string>();
  CLI::App* command = app.add_subcommand("completion", "a script by which the shell completes commands and keys");
  command->add_option("SHELL", *shell, "the shell it is for")->required()->check(CLI::IsMember({"bash"}));
  command->footer("Try it: source <(lockstep completion bash)");
  command->callback([&app, &run] {
    run = [&app] {
      fmt::print("{}", bash_script(app));
      return kExitDone;
    };
  });
}

}  // namespace lockstep::commands
