// The program: one command, and one place where an error becomes a message and an exit status.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <ctime>
#include <exception>
#include <filesystem>
#include <new>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/current_world.h"
#include "base/failure.h"
#include "base/version.h"
#include "commands/commands.h"
#include "lockstep/error.h"
#include "lockstep/log.h"
#include "train/metrics.h"

namespace {

using namespace lockstep;

/// The rank that a launcher gave, before there is a world; 0 without one.
int launched_rank() {
  for (const char* name : {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID"}) {
    if (const char* rank = std::getenv(name)) return std::atoi(rank);
  }
  return 0;
}

/// Most errors meet all ranks alike, and one message is enough: rank 0 speaks first and ends the job, which a signal
/// tells the others. A rank that only lost another gives that one time to say why; of one that died without a word the
/// first of its node speaks, at once, since mpirun ends the others within two seconds.
void let_others_speak(ErrorCode code, int rank, int status) {
  World* world = current_world().get();
  if (code == ErrorCode::comm_rank_died && world != nullptr && world->is_first_to_report()) return;
  const bool is_consequence = code == ErrorCode::comm_rank_lost || code == ErrorCode::comm_rank_died;
  if (rank == 0 && !is_consequence) return;
  const timespec pause = is_consequence ? timespec{3, 0} : timespec{1, 500'000'000};
  if (::nanosleep(&pause, nullptr) != 0 && errno == EINTR) ::_exit(status);
}

/// Says what happened and gives the exit status; in a world of several ranks ends them all and does not return.
int tell(ErrorCode code, const std::string& message) {
  const ErrorEntry& row = entry(code);
  World* world = current_world().get();
  const bool has_peers = world != nullptr && world->size() > 1;
  log::set_progress_line("");
  let_others_speak(code, world != nullptr ? world->rank() : launched_rank(), row.exit_status);
  const std::string who = has_peers ? fmt::format("rank {} on {}", world->rank(), world->host()) : "error";
  fmt::print(stderr, "lockstep: {}: {}\n  remedy: {}\n  [{}]\n", who, message, row.remedy, row.code);
  log::write_to_file(log::Level::error, fmt::format("{} [{}]", message, row.code));
  note_failure();
  if (has_peers) world->abort(row.exit_status);
  return row.exit_status;
}

void print_version(bool as_json) {
  const std::string json = train::versions_json();
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

/// What CLI11 said, and where the help on it is; or which commands there are, where the first words name none.
std::string usage_problem(const CLI::App& app, const std::vector<std::string>& words, const std::string& said) {
  const CLI::App* at = &app;
  std::string path = "lockstep";
  for (const std::string& word : words) {
    const auto commands = at->get_subcommands([](const CLI::App*) { return true; });
    if (commands.empty() || word.starts_with('-')) break;
    const auto found = std::ranges::find(commands, word, &CLI::App::get_name);
    if (found == commands.end()) {
      std::vector<std::string> names;
      for (const CLI::App* command : commands) names.push_back(command->get_name());
      return fmt::format("there is no command `{} {}`; wanted one of {}", path, word, fmt::join(names, ", "));
    }
    at = *found;
    path += " " + word;
  }
  return at == &app ? said : fmt::format("{}; see `{} --help`", said, path);
}

int run_program(int argc, char** argv) {
  CLI::App app("Lockstep trains networks data-parallel on an HPC cluster.", "lockstep");
  bool wants_version = false, wants_json = false;
  app.add_flag("--version", wants_version, "this program, its compiler and its libraries");
  app.add_flag("--json", wants_json, "with --version: as one JSON object")->needs("--version");
  app.require_subcommand(0, 1);
  app.footer("`lockstep COMMAND --help` explains a command, `lockstep help config` every key of a configuration.");

  commands::Run run;
  const commands::Arguments arguments{&argc, &argv};
  commands::add_train(app, run, arguments);
  commands::add_evaluate(app, run, arguments);
  commands::add_plan(app, run, arguments);
  commands::add_data(app, run);
  commands::add_checkpoint(app, run);
  commands::add_report(app, run);
  commands::add_gpu_info(app, run);
  commands::add_completion(app, run);
  commands::add_help(app, run);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    if (e.get_exit_code() == 0) return app.exit(e);  // --help
    fail(ErrorCode::usage, "{}", usage_problem(app, {argv + 1, argv + argc}, e.what()));
  }
  if (wants_version) {
    print_version(wants_json);
    return kExitDone;
  }
  require(static_cast<bool>(run), ErrorCode::usage, "a command is missing, such as `lockstep train CONFIG.yaml`");
  return run();
}

}  // namespace

int main(int argc, char** argv) {
  int status = kExitFailed;
  try {
    status = run_program(argc, argv);
  } catch (const Error& e) {
    status = tell(e.code(), e.what());
  } catch (const std::bad_alloc&) {
    status = tell(ErrorCode::out_of_memory, "the system gave no more memory");
  } catch (const std::filesystem::filesystem_error& e) {
    status = tell(ErrorCode::system_call, e.what());
  } catch (const std::exception& e) {
    status = tell(ErrorCode::internal, e.what());
  }
  current_world().reset();
  return status;
}
