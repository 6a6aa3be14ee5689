// lockstep completion bash: prints completion.bash, which the Makefile embeds, or with --tables the commands, options
// and keys that this script reads. They come from the tables that `--help` and `help config` print.
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

constexpr std::string_view kScript =
#include "commands/completion.bash.inc"
    ;

void append(std::string& list, std::string_view word) {
  if (!list.empty()) list += ' ';
  list += word;
}

/// Bash treats neighbouring tabs as one, so an empty column needs a placeholder.
std::string_view column(std::string_view text) { return text.empty() ? "-" : text; }

/// The values that an option or argument accepts. `--help` shows choices as "TEXT:{train,val,test}", which become
/// words; a number has none; anything else is a file.
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
  for (const std::string_view number : {"INT", "UINT", "FLOAT", "N", "BYTES", "R,G,B"})
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
std::string command_tables(const CLI::App& app, const std::string& path, const std::string& all_commands) {
  std::string commands, options, arguments, lines;
  const auto subcommands = app.get_subcommands([](const CLI::App*) { return true; });
  for (const CLI::App* command : subcommands) append(commands, command->get_name());
  for (const CLI::Option* option : app.get_options()) {
    if (!option->nonpositional()) {
      const bool is_topic = path == "lockstep help";
      arguments += fmt::format("\t{}", column(is_topic ? "config " + all_commands : kind_of(*option)));
      if (option->get_items_expected_max() > 1) arguments += "\t...";
    }
    for (const std::string& name : option->get_lnames()) {
      if (!option->get_group().empty()) append(options, "--" + name);
      if (option->get_items_expected_max() > 0)
        lines += fmt::format("option\t{} --{}\t{}\n", path, name, column(kind_of(*option)));
    }
  }
  lines = fmt::format("command\t{}\t{}\t{}{}\n", path, column(commands), column(options), arguments) + lines;
  for (const CLI::App* command : subcommands)
    lines += command_tables(*command, path + " " + command->get_name(), all_commands);
  return lines;
}

std::string tables(const CLI::App& app) {
  std::string all_commands;
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; }))
    append(all_commands, command->get_name());
  std::string lines = command_tables(app, "lockstep", all_commands);
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
  command->add_option("SHELL", options->shell, "The shell")->required()->check(CLI::IsMember({"bash"}));
  command->add_flag("--tables", options->prints_tables, "Print the tables that the script reads")->group("");
  command->footer("Try it: source <(lockstep completion bash)");
  command->callback([&app, &run, options] {
    run = [&app, options] {
      fmt::print("{}", options->prints_tables ? tables(app) : std::string(kScript));
      return kExitDone;
    };
  });
}

}  // namespace lockstep::commands
