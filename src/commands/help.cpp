// How the command line is explained: `lockstep help [TOPIC]` prints the help of the program, of a command, of all
// configuration keys, or of some, or the codes of errors; the texts of `--help`; and what is wrong with arguments that
// CLI11 rejects.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/file.h"
#include "commands/commands.h"
#include "commands/report.h"
#include "config/parser.h"
#include "config/table.h"
#include "lockstep/error.h"

namespace lockstep::commands {
namespace {

using Words = std::vector<std::string>;

/// The part of the text between two others; empty if the first is not in it.
std::string between(const std::string& text, const std::string& begin, const std::string& end) {
  const std::size_t found = text.find(begin), from = found + begin.size();
  return found == std::string::npos ? "" : text.substr(from, text.find(end, from) - from);
}

Words names_of(const std::vector<const CLI::App*>& commands) {
  Words names;
  for (const CLI::App* command : commands) names.push_back(command->get_name());
  return names;
}

/// The command that the arguments name, with its path ("lockstep data import"), and the first word that should be a
/// command but is not.
struct Named {
  const CLI::App* command;
  std::string path = "lockstep";
  std::optional<std::string> unknown;
};

Named command_of(const CLI::App& app, const Words& arguments) {
  Named named{.command = &app, .unknown = {}};
  for (const std::string& word : arguments) {
    const auto commands = commands_of(*named.command);
    if (commands.empty() || word.starts_with('-')) break;
    const auto found = std::ranges::find(commands, word, &CLI::App::get_name);
    // A command with subcommands may also have arguments of its own, as in `report RUN` and `report memory`.
    const bool takes_arguments =
        !named.command->get_options([](const CLI::Option* option) { return option->get_positional(); }).empty();
    if (found == commands.end()) {
      if (!takes_arguments) named.unknown = word;
      break;
    }
    named.command = *found;
    named.path += " " + word;
  }
  return named;
}

class HelpFormatter : public CLI::Formatter {
 public:
  std::string make_option_name(const CLI::Option* option, bool is_positional) const override {
    std::string name = CLI::Formatter::make_option_name(option, is_positional);
    const std::string optional = "{-}";
    if (const std::size_t found = name.find(optional); found != std::string::npos)
      name.replace(found, optional.size(), name.starts_with("--print-config") ? "[=KEY]" : "[=FILE]");
    return name;
  }

  std::string make_option_opts(const CLI::Option* option) const override {
    const std::string type = option->get_type_name();  // "INT:INT in [1 - 64]", "TEXT:{a,b}"
    const std::string limits = between(type, "in [", "]");
    std::string accepted = between(type, "{", "}");
    std::ranges::replace(accepted, ',', '|');
    if (accepted.empty()) accepted = type.substr(0, type.find(':'));
    if (accepted == "INT" || accepted == "UINT") accepted = "N";
    const bool takes_value = option->get_type_size() != 0;
    const bool names_itself = option->get_positional() && option->get_name(true) == accepted;
    std::string text;
    if (takes_value && !accepted.empty() && !names_itself && !(option->get_positional() && accepted == "TEXT"))
      text += " " + accepted;
    if (takes_value && option->get_expected_max() == CLI::detail::expected_max_vector_size && option->get_positional())
      text += " ...";
    if (!limits.empty()) text += fmt::format(" ({} to {})", between(limits, "", " - "), between(limits, " - ", " "));
    if (takes_value && !option->get_default_str().empty()) text += ", default " + option->get_default_str();
    if (option->get_required()) text += ", required";
    for (const auto& [others, text_of] :
         {std::pair{option->get_needs(), ", only with "}, {option->get_excludes(), ", not with "}}) {
      Words names;
      for (const CLI::Option* other : others) names.push_back(other->get_name());
      std::ranges::sort(names);
      if (!names.empty()) text += fmt::format("{}{}", text_of, fmt::join(names, ", "));
    }
    return text;
  }
};

/// The option as `--help` shows it: "--ranks N (1 to 64), default 1: The number of ranks".
std::string help_of(const CLI::Option& option) {
  const HelpFormatter help;
  return fmt::format("{}{}: {}", help.make_option_name(&option, option.get_positional()),
                     help.make_option_opts(&option), option.get_description());
}

/// The option that a sentence of CLI11 is about, which it names first: "--ranks: Value 0 not in range 1 to 64".
const CLI::Option* option_in(const std::string& sentence, const CLI::App& command) {
  for (std::string word : CLI::detail::split(sentence, ' ')) {
    if (word.ends_with(':')) word.pop_back();
    if (const CLI::Option* option = command.get_option_no_throw(word)) return option;
  }
  return nullptr;
}

/// What may be meant by an argument that the command does not have.
std::string hint_about(const std::string& argument, const CLI::App& command) {
  if (argument.starts_with('-') && is_there(argument)) return "; the file is named ./" + argument;
  Words names;
  for (const CLI::Option* option : command.get_options())
    for (const std::string& name : option->get_lnames())
      if (!option->get_group().empty()) names.push_back("--" + name);
  const std::string nearest = config::nearest_word(argument.substr(0, argument.find('=')), names);
  return nearest.empty() ? "" : "; the nearest is " + nearest;
}

/// Refuses empty values: an empty file name would be treated as if the option were not given.
void check_values(const Named& named, const Words& arguments) {
  const auto end = std::ranges::find(arguments, "--");
  for (auto argument = arguments.begin(); argument != end; ++argument) {
    require(!argument->starts_with("--") || !argument->ends_with('='), ErrorCode::usage,
            "nothing follows the `=` of {}: give a value, or leave out the `=`", *argument);
    if (!argument->empty() || argument == arguments.begin() || !(argument - 1)->starts_with("--")) continue;
    const CLI::Option* option = named.command->get_option_no_throw(*(argument - 1));
    if (option != nullptr && option->get_items_expected_min() > 0)
      fail(ErrorCode::usage, "{}: found an empty text; expected {}", *(argument - 1), help_of(*option));
  }
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

void show(const CLI::App& app, const std::vector<std::string>& topics) {
  if (!topics.empty() && topics.front() == "config") {
    fmt::print("{}", topics.size() == 1 ? config::help_text()
                                        : config::help_text(std::vector(topics.begin() + 1, topics.end())));
    return;
  }
  if (topics == std::vector<std::string>{"errors"}) {
    fmt::print("{}", error_codes());
    return;
  }
  const CLI::App* command = &app;
  std::string path = "lockstep";
  for (const std::string& topic : topics) {
    const auto commands = commands_of(*command);
    const auto found = std::ranges::find(commands, topic, &CLI::App::get_name);
    require(found != commands.end(), ErrorCode::usage,
            "there is no help topic {}; expected `config`, `config KEY`, `errors`, or a command that `lockstep --help` "
            "lists",
            topic);
    command = *found;
    path += " " + topic;
  }
  // Not App::help(), which would explain the command that was called, `help`.
  fmt::print("{}", command->get_formatter()->make_help(command, path, CLI::AppFormatMode::Normal));
}

}  // namespace

std::vector<const CLI::App*> commands_of(const CLI::App& app) {
  return app.get_subcommands([](const CLI::App*) { return true; });
}

std::shared_ptr<CLI::FormatterBase> help_formatter() { return std::make_shared<HelpFormatter>(); }

void check_commands(const CLI::App& app, const std::vector<std::string>& arguments) {
  const Named named = command_of(app, arguments);
  check_values(named, arguments);
  if (!named.unknown) return;
  const Words names = names_of(commands_of(*named.command));
  const std::string nearest = config::nearest_word(*named.unknown, names);
  fail(ErrorCode::usage, "there is no command `{} {}`{}; the commands are {}", named.path, *named.unknown,
       nearest.empty() ? "" : fmt::format(" (the nearest is {})", nearest), fmt::join(names, ", "));
}

std::string usage_problem(const CLI::App& app, const std::vector<std::string>& arguments,
                          const CLI::ParseError& error) {
  const Named named = command_of(app, arguments);
  const auto late = std::find_if(std::ranges::find(arguments, "--"), arguments.end(), [&](const std::string& word) {
    return word.starts_with("--") && named.command->get_option_no_throw(word.substr(0, word.find('='))) != nullptr;
  });
  const Words left = app.remaining(true);
  const auto extra = std::ranges::find_if(left, [](const std::string& word) { return word != "--"; });
  std::string problem = error.what();
  if (late != arguments.end())
    problem = fmt::format("{} is after `--`, where no option can be: write it before", *late);
  else if (dynamic_cast<const CLI::ExtrasError*>(&error) != nullptr && extra != left.end())
    problem += hint_about(*extra, *named.command);
  else if (const CLI::Option* option = option_in(problem, *named.command))
    problem += "; expected " + help_of(*option);
  else if (dynamic_cast<const CLI::RequiredError*>(&error) != nullptr)
    problem += fmt::format(": one of {}", fmt::join(names_of(commands_of(*named.command)), ", "));
  return named.command == &app ? problem : fmt::format("{}; see `{} --help`", problem, named.path);
}

void add_help(CLI::App& app, Run& run) {
  auto topics = std::make_shared<std::vector<std::string>>();
  CLI::App* command = app.add_subcommand(
      "help",
      "Print help: `help config` lists all configuration keys, `help config KEY` explains a key or a group of "
      "keys, `help errors` lists all error codes, `help COMMAND` explains a command");
  command->add_option("TOPIC", *topics, "`config`, `config` and keys or groups, `errors`, or a command");
  set_run(*command, run, [topics, &app] { show(app, *topics); });
}

}  // namespace lockstep::commands
