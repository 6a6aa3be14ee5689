// How the command line is explained: the texts of `--help`, and what is wrong with arguments that CLI11 rejects.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace lockstep::commands {

/// Shows an option as "--ranks N (1 to 64), default 1" and "--json[=FILE]". Set it before subcommands are added.
class HelpFormatter : public CLI::Formatter {
 public:
  std::string make_option_name(const CLI::Option* option, bool is_positional) const override;
  std::string make_option_opts(const CLI::Option* option) const override;
};

/// Throws Error (usage) if a word that is not a command stands where a command must be, or if an option has an empty
/// value. `arguments`: those of the program. CLI11 would print the help of the program for `lockstep trian --help`, and
/// read `--json=` as `--json`.
void check_commands(const CLI::App& app, const std::vector<std::string>& arguments);
/// A sentence that says what CLI11 rejected and where to find help.
std::string usage_problem(const CLI::App& app, const std::vector<std::string>& arguments, const CLI::ParseError& error);

}  // namespace lockstep::commands
