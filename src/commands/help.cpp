// lockstep help [TOPIC]: prints the help of the program, of a command, of all configuration keys, or of some, or the
// codes of errors.
#include <CLI/CLI.hpp>
#include <memory>
#include <string>
#include <vector>

#include "commands/commands.h"
#include "config/parser.h"
#include "lockstep/error.h"

namespace lockstep::commands {
namespace {

const CLI::App* find_command(const CLI::App& app, const std::string& name) {
  const auto found = app.get_subcommands([&](const CLI::App* command) { return command->get_name() == name; });
  return found.empty() ? nullptr : found.front();
}

/// src/errors.def, in the form in which an error prints its remedy.
std::string error_codes() {
  std::string text;
#define LOCKSTEP_ERROR(code, exit_status, meaning, remedy) \
  text += #code " (exit status " #exit_status "): " meaning "\n  remedy: " remedy "\n";
#include "errors.def"
#undef LOCKSTEP_ERROR
  return text;
}

int show(const CLI::App& app, const std::vector<std::string>& topics) {
  if (!topics.empty() && topics.front() == "config") {
    fmt::print("{}", topics.size() == 1 ? config::help_text()
                                        : config::help_text(std::vector(topics.begin() + 1, topics.end())));
    return kExitDone;
  }
  if (topics == std::vector<std::string>{"errors"}) {
    fmt::print("{}", error_codes());
    return kExitDone;
  }
  const CLI::App* command = &app;
  std::string path = "lockstep";
  for (const std::string& topic : topics) {
    command = find_command(*command, topic);
    require(command != nullptr, ErrorCode::usage,
            "there is no help topic {}; expected `config`, `config KEY`, `errors`, or a command that `lockstep --help` "
            "lists",
            topic);
    path += " " + topic;
  }
  // Not App::help(), which would explain the command that was called, `help`.
  fmt::print("{}", command->get_formatter()->make_help(command, path, CLI::AppFormatMode::Normal));
  return kExitDone;
}

}  // namespace

void add_help(CLI::App& app, Run& run) {
  auto topics = std::make_shared<std::vector<std::string>>();
  CLI::App* command = app.add_subcommand(
      "help",
      "Print help: `help config` lists all configuration keys, `help config KEY` explains a key or a group of "
      "keys, `help errors` lists all error codes, `help COMMAND` explains a command");
  command->add_option("TOPIC", *topics, "`config`, `config` and keys or groups, `errors`, or a command");
  command->callback([topics, &app, &run] { run = [topics, &app] { return show(app, *topics); }; });
}

}  // namespace lockstep::commands
