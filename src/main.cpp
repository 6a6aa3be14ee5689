// Runs one command. This is the only place where an error becomes a message and an exit status.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <exception>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "base/failure.h"
#include "base/process.h"
#include "base/standard_streams.h"
#include "base/version.h"
#include "comm/launch.h"
#include "commands/commands.h"
#include "lockstep/error.h"
#include "lockstep/log.h"
#include "run/metrics.h"

namespace {

using namespace lockstep;

/// The rank according to the launcher, for errors before the world has started; 0 without a launcher.
int launched_rank() {
  for (const char* name : {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID"}) {
    if (const char* rank = std::getenv(name)) return std::atoi(rank);
  }
  return 0;
}

/// Decides when this rank prints its error. Most errors occur on all ranks, and one message is enough: rank 0 prints it
/// first and ends the job, and the other ranks learn this from a signal while they wait here. A rank that only lost a
/// peer gives that peer time to print the reason. If the peer died without reporting an error, the first rank of its
/// node prints the message immediately, because mpirun ends the other ranks within two seconds.
void let_others_report_first(ErrorCode code, int rank, int status) {
  World* world = current_world().get();
  const bool may_be_of_peer = code == ErrorCode::comm_rank_died || code == ErrorCode::out_of_memory;
  if (may_be_of_peer && world != nullptr && world->cause_of_loss() && world->is_first_to_report()) return;
  const bool is_consequence = code == ErrorCode::comm_rank_lost || code == ErrorCode::comm_rank_died;
  if (rank == 0 && !is_consequence) return;
  const timespec pause = is_consequence ? timespec{3, 0} : timespec{1, 500'000'000};
  if (::nanosleep(&pause, nullptr) != 0 && errno == EINTR) ::_exit(status);
}

/// Prints the error and returns the exit status. In a world of several ranks it ends all of them and does not return.
int report(ErrorCode code, const std::string& message) {
  World* world = current_world().get();
  if (const auto cause = world != nullptr ? world->cause_of_loss() : std::nullopt; cause && cause->what() != message)
    return report(cause->code(), cause->what());
  const ErrorEntry& row = entry(code);
  const bool has_peers = world != nullptr && world->size() > 1;
  log::set_progress_line("");
  let_others_report_first(code, world != nullptr ? world->rank() : launched_rank(), row.exit_status);
  print_error(has_peers ? fmt::format("rank {} on {}", world->rank(), world->host()) : "error", code, message);
  note_failure();
  if (has_peers) world->abort(row.exit_status);
  return row.exit_status;
}

void print_version(bool as_json) {
  const std::string json = run::versions_json();
  if (as_json) {
    fmt::print("{}\n", json);
    return;
  }
  const auto versions = nlohmann::ordered_json::parse(json);
  fmt::print("lockstep {} ({})\n  {:14} {}\n", version(), commit(), "compiler", compiler());
  for (const auto& [library, text] : versions["libraries"].items()) {
    fmt::print("  {:14} {}\n", library, text.get<std::string>());
  }
}

/// Commands that run on several ranks, and commands whose output is the same, or of interest, in each process.
bool is_of_any_process(std::string_view command) {
  constexpr std::string_view kCommands[] = {"train",    "evaluate",   "generate", "doctor",
                                            "gpu-info", "completion", "help"};
  return std::ranges::find(kCommands, command) != std::ranges::end(kCommands);
}

int run_program(int argc, char** argv) {
  CLI::App app("Lockstep trains neural networks data-parallel on an HPC cluster.", "lockstep");
  app.formatter(commands::help_formatter());
  bool prints_version = false, prints_json = false;
  app.add_flag("--version", prints_version, "Print the versions of this program, its compiler and its libraries");
  app.add_flag("--json", prints_json, "Print the versions as one JSON object")->needs("--version");
  app.require_subcommand(0, 1);
  app.footer(
      "`lockstep COMMAND --help` explains a command; `lockstep help config` explains every key of a configuration.");

  commands::Run run;
  const commands::Arguments arguments{&argc, &argv};
  commands::add_train(app, run, arguments);
  commands::add_evaluate(app, run, arguments);
  commands::add_predict(app, run);
  commands::add_generate(app, run, arguments);
  commands::add_plan(app, run);
  commands::add_data(app, run);
  commands::add_checkpoint(app, run);
  commands::add_compare(app, run);
  commands::add_report(app, run);
  commands::add_top(app, run);
  commands::add_scaling(app, run);
  commands::add_doctor(app, run, arguments);
  commands::add_gpu_info(app, run);
  commands::add_completion(app, run);
  commands::add_help(app, run);
  commands::check_commands(app, {argv + 1, argv + argc});
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    if (e.get_exit_code() == 0) return app.exit(e);  // --help
    fail(ErrorCode::usage, "{}", commands::usage_problem(app, {argv + 1, argv + argc}, e));
  }
  if (prints_version) {
    print_version(prints_json);
    return kExitDone;
  }
  require(static_cast<bool>(run), ErrorCode::usage, "a command is missing, such as `lockstep train CONFIG.yaml`");
  if (const std::string command = app.get_subcommands().front()->get_name(); !is_of_any_process(command))
    comm::require_one_process(command);
  raise_limit_of_open_files();
  return run();
}

/// Reports an exception that is not an Error. A closed pipe on standard output is not an error, unless other ranks must
/// be ended too.
int report(const std::exception& error) {
  const World* world = current_world().get();
  const auto* of_system = dynamic_cast<const std::system_error*>(&error);
  if (of_system != nullptr && is_broken_pipe(*of_system) && (world == nullptr || world->size() == 1))
    end_by_broken_pipe();
  if (const auto* of_file = dynamic_cast<const std::filesystem::filesystem_error*>(&error))
    return report(ErrorCode::system_call,
                  fmt::format("cannot access {}: {}", of_file->path1().string(), of_file->code().message()));
  if (of_system != nullptr && std::ferror(stdout) != 0)
    return report(ErrorCode::system_call,
                  fmt::format("cannot write to standard output: {}", of_system->code().message()));
  const Error known = as_error(error);
  return report(known.code(), known.what());
}

}  // namespace

int main(int argc, char** argv) {
  prepare_standard_streams();
  ::signal(SIGXFSZ,
           SIG_IGN);  // a write beyond `ulimit -f` fails, so that the partial file is removed and the error named
  catch_crashes();
  int status = kExitFailed;
  try {
    status = run_program(argc, argv);
    flush_standard_output();
  } catch (const std::exception& e) {
    status = report(e);
  }
  exit_is_expected();
  current_world().reset();
  return status;
}
