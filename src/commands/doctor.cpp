// lockstep doctor: checks this machine or allocation, rank by rank and node by node, and reports what is slow or
// broken. Exit status 1: a check failed.
#include "doctor/doctor.h"

#include <CLI/CLI.hpp>
#include <cstdlib>
#include <memory>
#include <string>

#include "base/failure.h"
#include "comm/diagnosis.h"
#include "commands/commands.h"
#include "commands/report.h"
#include "lockstep/backend.h"
#include "lockstep/error.h"
#include "lockstep/log.h"

namespace lockstep::commands {
namespace {

struct DoctorArguments {
  doctor::Options options;
  bool is_quick = false;
  std::string json, device = "auto";
};

/// The value of an environment variable, or the default if it is unset or empty.
std::string setting(const char* name, const std::string& otherwise) {
  const char* value = std::getenv(name);
  return value != nullptr && *value != '\0' ? value : otherwise;
}

/// The device of this rank. If it cannot be used, the reason is a result of the examination and not an error.
std::unique_ptr<Backend> backend_of(const World& world, const std::string& device, std::string& problem) {
  try {
    return make_backend({.device = device, .local_rank = world.local_rank(), .local_size = world.local_size()});
  } catch (const Error& error) {
    problem = error.what();
    return nullptr;
  }
}

int run_doctor(DoctorArguments arguments, const Arguments& program) {
  if (arguments.is_quick) arguments.options.effort = doctor::Effort::quick;
  World& world = *(current_world() = comm::start_world_of_any_builds(program.argc, program.argv));
  log::configure(world.rank(), world.size(), world.host(), false);
  std::string problem;
  const auto backend = backend_of(world, arguments.device, problem);
  const doctor::Report found = doctor::examine(world, backend.get(), problem, arguments.options);
  if (world.rank() == 0) report(arguments.json, found.json(), found.text());
  return found.has_failed() ? kExitFailed : kExitDone;
}

}  // namespace

void add_doctor(CLI::App& app, Run& run, const Arguments& program) {
  auto arguments = std::make_shared<DoctorArguments>();
  arguments->options.run_folder = setting("LOCKSTEP_RUNS", "runs");
  arguments->options.data_folder = setting("LOCKSTEP_DATA", "");
  CLI::App* command = app.add_subcommand(
      "doctor", "Check each rank, what connects them, and the file systems; exit status 1 if a check fails");
  command->add_flag("--quick", arguments->is_quick,
                    "Take less than 20 s: skip the all-reduce of 1 GB and the measurement of each pair of ranks");
  add_value(*command, "--runs", "DIR", arguments->options.run_folder,
            "The folder of runs; by default LOCKSTEP_RUNS, or else `runs`");
  add_value(*command, "--data", "DIR", arguments->options.data_folder,
            "The folder of data sets; by default LOCKSTEP_DATA");
  command->add_option("--device", arguments->device, "auto, cpu or cuda")
      ->check(CLI::IsMember({"auto", "cpu", "cuda"}))
      ->type_name("DEVICE");
  add_json(*command, arguments->json);
  set_run(*command, run, [arguments, program] { return run_doctor(*arguments, program); });
}

}  // namespace lockstep::commands
