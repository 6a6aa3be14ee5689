// Each function add_NAME() adds a subcommand (CLI11) to the program. Parsing the chosen one sets `run`, which main
// calls. A command returns its exit status or throws Error.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace CLI {
class App;
class FormatterBase;
class ParseError;
}  // namespace CLI

namespace lockstep {
struct Config;
}

namespace lockstep::commands {

/// The arguments of main, for commands that start MPI.
struct Arguments {
  int* argc = nullptr;
  char*** argv = nullptr;
};

using Run = std::function<int()>;

void add_train(CLI::App& app, Run& run, const Arguments& arguments);
void add_evaluate(CLI::App& app, Run& run, const Arguments& arguments);
void add_predict(CLI::App& app, Run& run);
void add_generate(CLI::App& app, Run& run, const Arguments& arguments);
void add_plan(CLI::App& app, Run& run);
/// What `plan` prints for rank 0 of `ranks`, which are placed on `nodes` as by comm::planned_ranks().
std::string plan_text(const Config& config, int ranks, int nodes);
void add_data(CLI::App& app, Run& run);
/// `data import`; `data` is the subcommand.
void add_data_import(CLI::App& data, Run& run);
/// `data show`
void add_data_show(CLI::App& data, Run& run);
/// `data encode` and `data decode`; `data` is the subcommand.
void add_encode_and_decode(CLI::App& data, Run& run);
void add_checkpoint(CLI::App& app, Run& run);
void add_compare(CLI::App& app, Run& run);
void add_report(CLI::App& app, Run& run);
void add_top(CLI::App& app, Run& run);
void add_scaling(CLI::App& app, Run& run);
/// `scaling report`; `scaling` is the subcommand.
void add_scaling_report(CLI::App& scaling, Run& run);
void add_completion(CLI::App& app, Run& run);
void add_doctor(CLI::App& app, Run& run, const Arguments& arguments);
void add_gpu_info(CLI::App& app, Run& run);
void add_help(CLI::App& app, Run& run);

// How the command line is explained (help.cpp)
/// Shows an option as "--ranks N (1 to 64), default 1" and "--json[=FILE]". Set it before subcommands are added.
std::shared_ptr<CLI::FormatterBase> help_formatter();
/// Throws Error (usage) if a word that is not a command stands where a command must be, or if an option has an empty
/// value. `arguments`: those of the program. CLI11 would print the help of the program for `lockstep trian --help`, and
/// read `--json=` as `--json`.
void check_commands(const CLI::App& app, const std::vector<std::string>& arguments);
/// A sentence that says what CLI11 rejected and where to find help.
std::string usage_problem(const CLI::App& app, const std::vector<std::string>& arguments, const CLI::ParseError& error);
std::vector<const CLI::App*> commands_of(const CLI::App& app);

}  // namespace lockstep::commands
