// Options that several commands have, and the two forms in which a command reports its results: text for users, one
// JSON object for programs.
#pragma once

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/printable.h"
#include "commands/commands.h"
#include "lockstep/config.h"
#include "lockstep/error.h"

namespace lockstep::page {
class Page;
}

namespace lockstep::commands {

/// --json, --json=FILE.
void add_json(CLI::App& app, std::string& json);
/// CONFIG: YAML files and overrides.
void add_configuration(CLI::App& app, std::vector<std::string>& configuration);
/// --deepspeed: a configuration of DeepSpeed.
void add_deepspeed(CLI::App& app, std::string& deepspeed);
/// An argument that must be given.
template <typename Value>
CLI::Option* add_required(CLI::App& app, const std::string& name, Value& value, const std::string& text) {
  return app.add_option(name, value, text)->required();
}
/// An option whose value `--help` calls `type`.
template <typename Value>
CLI::Option* add_value(CLI::App& app, const std::string& name, const std::string& type, Value& value,
                       const std::string& text) {
  return app.add_option(name, value, text)->type_name(type);
}
/// An option with one of these words.
CLI::Option* add_choice(CLI::App& app, const std::string& name, std::string& value,
                        const std::vector<std::string>& words, const std::string& text);
/// An option with a whole number. A default outside of the range stands for none.
template <typename Number>
CLI::Option* add_number(CLI::App& app, const std::string& name, Number& value, std::type_identity_t<Number> low,
                        std::type_identity_t<Number> high, const std::string& text) {
  CLI::Option* option = app.add_option(name, value, text)->check(CLI::Range(low, high))->type_name("N");
  return value >= low && value <= high ? option->capture_default_str() : option;
}

/// Sets what the program does if this command is called. Without a result of `work`, the exit status is 0.
template <typename Work>
void set_run(CLI::App& command, Run& run, Work work) {
  command.callback([&run, work] {
    if constexpr (std::is_void_v<std::invoke_result_t<Work>>)
      run = [work] { return work(), kExitDone; };
    else
      run = work;
  });
}

/// `json` empty: prints the text on standard output. "-": prints the object on standard output and the text on standard
/// error. Otherwise: prints the text on standard output and writes the object to that file, which is replaced as a
/// whole or stays as it was.
void report(const std::string& json, const nlohmann::ordered_json& object, const std::string& text);

/// To be called before a command does its work. Throws usage if one of the files that it will write is one of those
/// that it reads, or if two of them are the same. Outputs may be "" (none) or "-" (standard output).
void check_outputs(const std::vector<std::string>& outputs, const std::vector<std::string>& inputs);

/// To be called before long work, which would be lost at the end. Throws usage if one of the files cannot be written.
void check_writable(const std::vector<std::string>& outputs);

/// The files of a configuration: the YAML files of the command line, and the files that the keys name.
std::vector<std::string> configuration_files(const std::vector<std::string>& command_line, const Config& config);

/// Prints text for users on standard output. Names in it cannot act on the terminal (base/printable.h).
template <typename... Args>
void print_text(fmt::format_string<Args...> format, Args&&... args) {
  fmt::print("{}", printable_lines(fmt::format(format, std::forward<Args>(args)...)));
}

/// Writes `content` to a file, which is replaced as a whole or stays as it was.
void write_result(const std::string& path, const std::string& content);

/// Writes the page to `html` and, if `figures` is not empty, each figure to that folder. Returns the names of
/// what was written, one per line, for users.
std::string write_page(const page::Page& page, const std::string& html, const std::string& figures);

}  // namespace lockstep::commands
