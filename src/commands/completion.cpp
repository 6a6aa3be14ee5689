// lockstep completion bash | zsh: prints completion.bash or completion.zsh, which the Makefile embeds, or with --tables
// the commands, options and keys that these scripts read. They come from the tables that `--help` and `help config`
// print.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "commands/commands.h"
#include "config/table.h"
#include "lockstep/error.h"

namespace lockstep::commands {
namespace {

constexpr std::string_view kBashScript =
#include "commands/completion.bash.inc"
    ;
constexpr std::string_view kZshScript =
#include "commands/completion.zsh.inc"
    ;

void append(std::string& list, std::string_view word) {
  if (!list.empty()) list += ' ';
  list += word;
}

/// Bash treats neighbouring tabs as one, so an empty column needs a placeholder.
std::string_view column(std::string_view text) { return text.empty() ? "-" : text; }

/// The values that an option or argument accepts. Choices, which `--help` shows as "TEXT:{train,val,test}", become
/// words. A number has no values to complete, and anything else is a file.
std::string kind_of(const CLI::Option& option) {
  const std::string type = option.get_type_name();
  const auto open = type.find('{'), close = type.rfind('}');
  if (open != std::string::npos && close != std::string::npos && open < close) {
    std::string words = type.substr(open + 1, close - open - 1);
    std::ranges::replace(words, ',', ' ');
    return words;
  }
  const std::string name = option.get_positional() ? option.get_name(true) : "";
  if (name == "CONFIG" || name == "MODEL") return name;
  if (type.starts_with("KEY")) return "KEY";
  for (const std::string_view number : {"INT", "UINT", "FLOAT", "N", "N|A:B", "LIST", "BYTES", "R,G,B", "WORDS"})
    if (type == number || type.starts_with(std::string(number) + ":") || type.starts_with(std::string(number) + " "))
      return "";
  return "FILE";
}

/// The choices of a key, "sgd adamw lars"; of a list, "[crop] [flip]".
std::string kind_of(const config::Key& key) {
  if (key.is_path) return "FILE";
  std::string words;
  for (const std::string& choice : key.choices) append(words, key.is_list ? "[" + choice + "]" : choice);
  return words;
}

/// The lines of a command and of its subcommands.
std::string command_tables(const CLI::App& app, const std::string& path) {
  std::string commands, options, arguments, lines;
  for (const CLI::App* command : commands_of(app)) append(commands, command->get_name());
  for (const CLI::Option* option : app.get_options()) {
    if (!option->nonpositional()) {
      arguments += fmt::format("\t{}", column(kind_of(*option)));
      if (option->get_items_expected_max() > 1) arguments += "\t...";
    }
    for (const std::string& name : option->get_lnames()) {
      if (!option->get_group().empty()) append(options, "--" + name);
      if (option->get_items_expected_max() > 0)
        lines += fmt::format("option\t{} --{}\t{}\n", path, name, column(kind_of(*option)));
    }
  }
  lines = fmt::format("command\t{}\t{}\t{}{}\n", path, column(commands), column(options), arguments) + lines;
  for (const CLI::App* command : commands_of(app)) lines += command_tables(*command, path + " " + command->get_name());
  return lines;
}

/// The lines for `lockstep help`: each command as if it were a subcommand of `help`, and `config` with its groups and
/// keys.
std::string topic_tables(const CLI::App& app, const std::string& path) {
  std::string commands, lines;
  for (const CLI::App* command : commands_of(app)) {
    append(commands, command->get_name());
    lines += topic_tables(*command, path + " " + command->get_name());
  }
  const bool is_root = path == "lockstep help";
  if (is_root) append(commands, "config");
  return fmt::format("command\t{}\t{}\t{}\n", path, column(commands), is_root ? "--help" : "-") + lines;
}

std::string config_topic() {
  std::string words, group_before;
  for (const config::Key& key : config::table()) {
    if (key.is_hidden) continue;
    const auto dot = key.name.find('.');
    const std::string group = dot == std::string::npos ? "" : key.name.substr(0, dot);
    if (!group.empty() && group != group_before) append(words, group);
    group_before = group;
    append(words, key.name);
  }
  return fmt::format("command\tlockstep help config\t-\t-\t{}\t...\n", words);
}

std::string tables(const CLI::App& app) {
  // If a command has several lines, the last one is in effect.
  std::string lines = command_tables(app, "lockstep") + topic_tables(app, "lockstep help") + config_topic();
  for (const config::Key& key : config::table())
    if (!key.is_hidden) lines += fmt::format("key\t{}\t{}\n", key.name, column(kind_of(key)));
  return lines;
}

}  // namespace

void add_completion(CLI::App& app, Run& run) {
  struct CommandLine {
    std::string shell;
    bool prints_tables = false;
  };
  auto options = std::make_shared<CommandLine>();
  CLI::App* command = app.add_subcommand("completion", "Print a script that completes commands and keys in the shell");
  command->add_option("SHELL", options->shell, "The shell")->required()->check(CLI::IsMember({"bash", "zsh"}));
  command->add_flag("--tables", options->prints_tables, "Print the tables that the script reads")->group("");
  command->footer("Try it: source <(lockstep completion bash), or source <(lockstep completion zsh)");
  set_run(*command, run, [&app, options] {
    const std::string_view script = options->shell == "zsh" ? kZshScript : kBashScript;
    fmt::print("{}", options->prints_tables ? tables(app) : std::string(script));
  });
}

}  // namespace lockstep::commands
