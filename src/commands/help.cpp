// lockstep help [TOPIC]: prints the help of the program, of a command, or of all configuration keys.
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

int show(const CLI::App& app, const std::vector<std::string>& topics) {
  if (topics == std::vector<std::string>{"config"}) {
    fmt::print("{}", config::help_text());
    return kExitDone;
  }
  const CLI::App* command = &app;
  std::string parents;
  for (const std::string& topic : topics) {
    parents += (parents.empty() ? "" : " ") + command->get_name();
    command = find_command(*command, topic);
    require(command != nullptr, ErrorCode::usage,
            "there is no help topic {}; expected `config` or a command that `lockstep --help` lists", topic);
  }
  fmt::print("{}", command->help(parents));
  return kExitDone;
}

}  // namespace

void add_help(CLI::App& app, Run& run) {
  auto topics = std::make_shared<std::vector<std::string>>();
  CLI::App* command = app.add_subcommand(
      "help", "Print help: `help config` lists all configuration keys, `help COMMAND` explains a command");
  command->add_option("TOPIC", *topics, "`config`, or a command");
  command->callback([topics, &app, &run] { run = [topics, &app] { return show(app, *topics); }; });
}

}  // namespace lockstep::commands
