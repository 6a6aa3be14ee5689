#include "commands/usage.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <regex>
#include <utility>

#include "config/nearest.h"
#include "lockstep/error.h"

namespace lockstep::commands {
namespace {

using Words = std::vector<std::string>;

/// What an option accepts, from the name of its type, which CLI11 composes: "INT:INT in [1 - 64]", "TEXT:{a,b}".
struct Accepted {
  std::string name;       // "N", "FILE", "a|b"
  std::string low, high;  // the limits of a number; empty: no limits
  Words choices;
  bool is_number = false, is_whole = false;
};

Accepted accepted_by(const CLI::Option& option) {
  const std::string type = option.get_type_name();
  Accepted accepted{.name = type.substr(0, type.find(':')), .low = "", .high = "", .choices = {}};
  std::smatch match;
  if (std::regex_search(type, match, std::regex(R"(in \[(\S+) - (\S+)\])"))) {
    accepted.low = match[1];
    accepted.high = match[2];
  }
  if (std::regex_search(type, match, std::regex(R"(\{(.*)\})"))) {
    accepted.choices = CLI::detail::split(match[1], ',');
    accepted.name = fmt::format("{}", fmt::join(accepted.choices, "|"));
  }
  accepted.is_whole = accepted.name == "INT" || accepted.name == "UINT" || accepted.name == "N";
  accepted.is_number = accepted.is_whole || accepted.name == "FLOAT";
  if (accepted.name == "INT" || accepted.name == "UINT") accepted.name = "N";
  return accepted;
}

std::string expected_by(const CLI::Option& option) {
  const Accepted accepted = accepted_by(option);
  if (!accepted.choices.empty()) return fmt::format("one of {}", fmt::join(accepted.choices, ", "));
  if (!accepted.is_number) return accepted.name == "TEXT" ? "a value" : accepted.name;
  const std::string number = accepted.is_whole ? "a whole number" : "a number";
  return accepted.low.empty() ? number : fmt::format("{} from {} to {}", number, accepted.low, accepted.high);
}

Words names_of(const std::vector<const CLI::App*>& commands) {
  Words names;
  for (const CLI::App* command : commands) names.push_back(command->get_name());
  return names;
}

std::vector<const CLI::App*> commands_of(const CLI::App& app) {
  return app.get_subcommands([](const CLI::App*) { return true; });
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

const CLI::Option* option_of(const CLI::App& command, const std::string& name) {
  for (const CLI::Option* option : command.get_options())
    if (option->check_name(name) || option->get_name(true) == name) return option;
  return nullptr;
}

std::string unexpected(const Named& named, const std::string& argument) {
  if (!argument.starts_with('-')) {
    Words takes;
    for (const CLI::Option* option : named.command->get_options())
      if (option->get_positional()) takes.push_back(option->get_name(true));
    return fmt::format("unexpected argument {}: `{}` takes {}", argument, named.path,
                       takes.empty() ? "no arguments" : fmt::format("{}", fmt::join(takes, " ")));
  }
  Words names;
  for (const CLI::Option* option : named.command->get_options())
    for (const std::string& name : option->get_lnames())
      if (!option->get_group().empty()) names.push_back("--" + name);
  const std::string nearest = config::nearest_word(argument.substr(0, argument.find('=')), names);
  std::error_code error;
  return fmt::format("`{}` has no option {}{}", named.path, argument,
                     std::filesystem::exists(argument, error) ? "; the file is named ./" + argument
                     : nearest.empty()                        ? ""
                                                              : "; the nearest is " + nearest);
}

std::string missing(const Named& named, const std::string& name) {
  if (name == "A subcommand")
    return fmt::format("expected a command after `{}`: one of {}", named.path,
                       fmt::join(names_of(commands_of(*named.command)), ", "));
  const CLI::Option* option = option_of(*named.command, name);
  constexpr std::size_t kLongest = 90;
  const std::string text = option == nullptr ? "" : option->get_description();
  return fmt::format("{} is missing{}", name, text.empty() || text.size() > kLongest ? "" : fmt::format(" ({})", text));
}

/// Rewords a message of CLI11. A message that CLI11 did not compose stays as it is.
std::string reworded(const Named& named, const CLI::ParseError& error) {
  const std::string message = error.what();
  std::smatch match;
  const auto matches = [&](const char* pattern) { return std::regex_match(message, match, std::regex(pattern)); };
  const auto expected = [&](const std::string& name) {
    const CLI::Option* option = option_of(*named.command, name);
    return option == nullptr ? "another value" : expected_by(*option);
  };
  if (matches(R"((\S+): Value (.*) not in range .*)") || matches(R"((\S+): (.*) not in \{.*\})"))
    return fmt::format("{}: expected {}, found {}", match.str(1), expected(match[1]), match.str(2));
  if (matches(R"(Could not convert: (\S+) = (.*))")) {
    const CLI::Option* option = option_of(*named.command, match[1]);
    if (option != nullptr && option->get_items_expected_max() == 0)
      return fmt::format("{} takes no value, found {}", match.str(1), match.str(2));
    return fmt::format("{}: expected {}, found {}", match.str(1), expected(match[1]), match.str(2));
  }
  if (matches(R"(The following arguments? w\S+ not expected: (.*))")) {
    const Words words = CLI::detail::split(match[1], ' ');
    return unexpected(named, words.front());
  }
  if (matches(R"((\S+|A subcommand) is required)")) return missing(named, match[1]);
  if (matches(R"((\S+): At Most 1 required but received (\d+))"))
    return fmt::format("{} is given {} times; give it once", match.str(1), match.str(2));
  if (matches(R"((\S+): \d+ required .* missing)"))
    return fmt::format("{}: expected {}, found nothing", match.str(1), expected(match[1]));
  if (matches(R"((\S+) requires (\S+))")) return fmt::format("{} is only possible with {}", match.str(1), match.str(2));
  if (matches(R"((\S+) excludes (\S+))"))
    return fmt::format("{} and {} cannot be combined", match.str(1), match.str(2));
  return message;
}

/// Refuses empty values: an empty file name would be treated as if the option were not given.
void check_values(const Named& named, const Words& arguments) {
  const auto end = std::ranges::find(arguments, "--");
  for (auto argument = arguments.begin(); argument != end; ++argument) {
    require(!argument->starts_with("--") || !argument->ends_with('='), ErrorCode::usage,
            "nothing follows the `=` of {}: give a value, or leave out the `=`", *argument);
    if (!argument->empty() || argument == arguments.begin() || !(argument - 1)->starts_with("--")) continue;
    const CLI::Option* option = option_of(*named.command, *(argument - 1));
    if (option != nullptr && option->get_items_expected_min() > 0)
      fail(ErrorCode::usage, "{}: expected {}, found an empty text", *(argument - 1), expected_by(*option));
  }
}

}  // namespace

std::string HelpFormatter::make_option_name(const CLI::Option* option, bool is_positional) const {
  const std::string name = CLI::Formatter::make_option_name(option, is_positional);
  const char* value = name.starts_with("--print-config") ? "[=KEY]" : "[=FILE]";
  return std::regex_replace(name, std::regex(R"(\{-\})"), value);
}

std::string HelpFormatter::make_option_opts(const CLI::Option* option) const {
  const Accepted accepted = accepted_by(*option);
  const bool takes_value = option->get_type_size() != 0;
  const bool names_itself = option->get_positional() && option->get_name(true) == accepted.name;
  std::string text;
  if (takes_value && !names_itself && !(option->get_positional() && accepted.name == "TEXT"))
    text += " " + accepted.name;
  if (takes_value && option->get_expected_max() == CLI::detail::expected_max_vector_size && option->get_positional())
    text += " ...";
  if (!accepted.low.empty()) text += fmt::format(" ({} to {})", accepted.low, accepted.high);
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
  const auto separator = std::ranges::find(arguments, "--");
  const auto option = std::find_if(separator, arguments.end(), [&](const std::string& a) {
    return a.starts_with('-') && option_of(*named.command, a.substr(0, a.find('='))) != nullptr;
  });
  const std::string message = option == arguments.end()
                                  ? reworded(named, error)
                                  : fmt::format("{} is after `--`, where no option can be: write it before", *option);
  return named.command == &app ? message : fmt::format("{}; see `{} --help`", message, named.path);
}

}  // namespace lockstep::commands
