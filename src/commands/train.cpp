// lockstep train: from a configuration to a trained model. Resumes automatically from the newest good checkpoint.
#include <CLI/CLI.hpp>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/current_world.h"
#include "base/failure.h"
#include "base/stop_signal.h"
#include "checkpoint/checkpoint.h"
#include "comm/world.h"
#include "commands/commands.h"
#include "commands/plan_text.h"
#include "config/nearest.h"
#include "config/parser.h"
#include "config/table.h"
#include "hdf5/version.h"
#include "lockstep/error.h"
#include "lockstep/log.h"
#include "train/banner.h"
#include "train/run_lock.h"
#include "train/session.h"
#include "train/trace_file.h"
#include "train/trainer.h"
#include "train/usage_log.h"

namespace lockstep::commands {

namespace {

struct TrainArguments {
  std::vector<std::string> configuration;
  train::SessionOptions session;
  bool fresh = false;  // start over: an existing run is moved aside
  bool dry_run = false;
};

/// From here on the directory belongs to this job, with its status and its log, even if the start fails. Returns notes
/// for the banner.
std::vector<std::string> begin_run(const train::RunDirectory& run, bool fresh) {
  std::vector<std::string> notes;
  if (fresh)
    if (const std::string aside = run.set_aside(); !aside.empty())
      notes.push_back(fmt::format("--fresh: the existing run was moved from {} to {}", run.path(), aside));
  run.create();
  run.write_status("running");
  for (const std::string& name : checkpoint::remove_partials(run.checkpoints()))
    notes.push_back(fmt::format("removed the remains of an interrupted save: {}", name));
  return notes;
}

int run_training(const TrainArguments& arguments, const Arguments& program) {
  const Config config = config::parse(arguments.configuration);
  for (const std::string& key : arguments.session.allow_change)
    require(config::find_key(key) != nullptr, ErrorCode::config_unknown_key, "--allow-change: there is no key {}{}",
            key, config::nearest_text(key));
  catch_stop_signals();
  hdf5::version();  // HDF5 starts before MPI: otherwise a parallel build of it makes MPI calls of its own
  World& world = *(current_world() = comm::start_world(program.argc, program.argv, config.comm.watchdog_seconds));
  log::configure(world.rank(), world.size(), world.host(), config.log.all_ranks);
  if (arguments.dry_run) {
    if (world.rank() == 0)
      log::info("This is a dry run: nothing is trained or written.\n{}",
                plan_report(config, world.size(), world.n_nodes()).text);
    return 0;
  }
  const train::RunLock lock(config.run.path(), world);
  const train::RunDirectory run(config);
  const bool is_leader = world.rank() == 0;
  std::vector<std::string> notes;
  if (is_leader) notes = begin_run(run, arguments.fresh);
  on_failure([run] { run.write_status("failed"); });
  run.check_is_shared(world);
  world.barrier();
  log::open_file(run.file("log.txt"));  // on all ranks: any of them may be the one that reports an error
  std::optional<train::TraceFile> trace;
  if (config.trace) trace.emplace(world, run.path());
  train::Session session(config, world, arguments.session);
  session.notes.insert(session.notes.begin(), notes.begin(), notes.end());
  if (is_leader) run.write_file("config.yaml", config::to_yaml(session.config));
  world.barrier();
  train::write_banner(session);
  std::optional<train::UsageLog> usage;
  if (config.log.usage_seconds > 0) usage.emplace(world, train::usage_log_options(session));
  const int status = train::train(session, lock);
  usage.reset();
  if (trace) trace->write();
  if (is_leader && status == kExitDone) log::info("done: {} steps; {}", session.last_step, run.path());
  return status;
}

}  // namespace

void add_train(CLI::App& app, Run& run, const Arguments& program) {
  auto arguments = std::make_shared<TrainArguments>();
  CLI::App* command = app.add_subcommand("train", "Train a model, or resume an existing run");
  command
      ->add_option("CONFIG", arguments->configuration,
                   "YAML files and key=value overrides; later ones override earlier ones")
      ->required();
  command->add_flag("--fresh", arguments->fresh, "Start over; an existing run is moved aside");
  command
      ->add_option("--allow-change", arguments->session.allow_change,
                   "A key that may differ from the configuration of the resumed run")
      ->type_name("KEY")
      ->allow_extra_args(false);
  command->add_flag("--dry-run", arguments->dry_run,
                    "Check the configuration and report what a step needs, without training");
  command->callback(
      [arguments, &run, program] { run = [arguments, program] { return run_training(*arguments, program); }; });
}

}  // namespace lockstep::commands
