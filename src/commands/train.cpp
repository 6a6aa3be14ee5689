// lockstep train: from a configuration to a trained model. Resumes automatically from the newest good checkpoint.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/failure.h"
#include "base/numbers.h"
#include "base/outcome.h"
#include "base/signal_watch.h"
#include "base/signals.h"
#include "checkpoint/checkpoint.h"
#include "comm/world.h"
#include "commands/commands.h"
#include "commands/report.h"
#include "config/parser.h"
#include "config/table.h"
#include "doctor/doctor.h"
#include "hdf5/reader.h"
#include "lockstep/error.h"
#include "lockstep/log.h"
#include "mlflow/sender.h"
#include "run/run_lock.h"
#include "run/trace_file.h"
#include "run/usage_log.h"
#include "train/banner.h"
#include "train/session.h"
#include "train/trainer.h"

namespace lockstep::commands {
namespace {

struct TrainArguments {
  std::vector<std::string> configuration;
  std::string deepspeed;
  train::SessionOptions session;
  bool dry_run = false;
  std::string printed;  // kWholeConfiguration, or a key
};

/// Open MPI's mpirun kills the ranks one second after Ctrl-C or SIGTERM, unless scripts/launch started it in a session
/// of its own and turns these signals into one that mpirun only passes on. Job scripts use scripts/launch, too.
bool loses_steps_when_stopped(const World& world) {
  return world.size() > 1 && std::getenv("OMPI_COMM_WORLD_SIZE") != nullptr &&
         std::getenv("OMPI_MCA_odls_base_sigkill_timeout") == nullptr && ::getsid(0) != ::getppid();
}

/// Called once nothing has refused the start: from here on, the run directory belongs to this job, including its status
/// and its log.
void begin_run(train::Session& session, bool fresh) {
  const run::RunDirectory run = session.run;
  const auto fails = [run] { on_failure([run] { run.write_status("failed"); }, run.file("status")); };
  all_agree(session.world, [&] {
    if (!session.leader()) return;
    if (fresh)
      if (const std::string aside = run.set_aside(); !aside.empty())
        session.notes.push_back(fmt::format("--fresh: the existing run was moved from {} to {}", run.path(), aside));
    run.create();
    run.write_status("running");
    fails();
    for (const std::string& name : checkpoint::remove_partials(run.checkpoints()))
      session.notes.push_back(fmt::format("removed the remains of an interrupted save: {}", name));
    if (loses_steps_when_stopped(session.world))
      session.notes.emplace_back(
          "mpirun leaves the ranks one second to save after Ctrl-C or SIGTERM: start it with "
          "`scripts/launch mpirun ...` so that no step is lost");
    run.write_file("config.yaml", config::to_yaml(session.config, true));
  });
  fails();
  log::open_file(run.file("log.txt"));  // on all ranks: any of them may be the one that reports an error
}

/// run.check: problems are logged, and the training continues.
void check_first(train::Session& session) {
  const std::string& data = session.config.data.train;
  const doctor::Report found = doctor::examine(
      session.world, session.backend.get(), "",
      {.effort = doctor::Effort::quick,
       .run_folder = session.run.path(),
       .data_folder = data == "synthetic" ? "" : std::filesystem::absolute(data).parent_path().string()});
  if (!session.leader()) return;
  for (const std::string& sentence : found.slowest_sentences()) log::info("run.check: {}", sentence);
  const std::string problems = found.problems();
  if (problems.empty())
    log::info("run.check: {}, none of which warns or fails", counted(found.checks.size(), "check"));
  else
    log::warning("run.check found this:\n{}", problems);
}

/// Logs what `lockstep doctor` finds on a rank that the others have waited for.
void explain_slow_rank(train::Session& session, const run::SlowRank& slow) {
  session.backend->unfreeze();
  const std::vector<std::string> hosts = session.world.all_gather(session.world.host());
  const doctor::Report found = doctor::examine(session.world, session.backend.get(), "",
                                               {.effort = doctor::Effort::quick, .examines_links = false});
  if (!session.leader()) return;
  const std::string& host = hosts[static_cast<std::size_t>(slow.rank)];
  const std::string problems = found.problems_of(slow.rank, host);
  log::warning("the job was slow: the other ranks have spent {:.0f} % of their time waiting for rank {} on {}. {}",
               100 * slow.waited_for, slow.rank, host,
               problems.empty()
                   ? "Now that the training is over, `lockstep doctor` finds nothing wrong with this rank: "
                     "look at its share of the work, and at other jobs that ran beside it."
                   : "`lockstep doctor` reports:\n" + problems);
}

/// Everything that can refuse a start is in the constructor of Session, which writes nothing. So a refused start leaves
/// RUN as it was. `sender` is created when the run begins. If the run does not end in this function, the caller tells
/// the sender how it ended.
int start_and_train(const Config& config, World& world, const train::SessionOptions& options, SignalWatch& watch,
                    const std::shared_ptr<run::RunLock>& lock, std::optional<mlflow::Sender>& sender) {
  // Ranks may compile and time plans for minutes while others wait for them.
  constexpr double kSlowStart = 10;
  world.set_watchdog_seconds(kSlowStart * config.comm.watchdog_seconds);
  train::Session session(config, world, options);
  session.run.check_is_shared(world);
  begin_run(session, options.fresh);
  watch.set_last_action([run = session.run, lock] {
    lock->release();
    return run.replace_status("running", "stopped");
  });
  if (config.run.is_checked) check_first(session);
  std::optional<run::TraceFile> trace;
  if (config.trace) trace.emplace(world, session.run.path());
  session.start();
  train::write_banner(session);
  if (session.leader() && !config.log.mlflow.empty())
    sender.emplace(mlflow::UploadOptions{.run = session.run.path(),
                                         .address = config.log.mlflow,
                                         .experiment = config.log.mlflow_experiment,
                                         .config = session.config});
  std::optional<run::UsageLog> usage;
  if (config.log.usage_seconds > 0) {
    Backend& backend = *session.backend;
    usage.emplace(
        world, run::UsageLogOptions{.directory = session.run.file("usage"),
                                    .interval_seconds = config.log.usage_seconds,
                                    .pci_bus = backend.device().pci_bus,
                                    .usage_of = [&](const std::string& pci_bus) { return backend.usage_of(pci_bus); }});
  }
  world.set_watchdog_seconds(config.comm.watchdog_seconds);
  watch.start_is_over([run = session.run] { run.replace_status("running", "failed"); });
  const train::Outcome outcome = train::train(session, *lock);
  usage.reset();
  if (trace) trace->write();
  if (outcome.slow_rank && outcome.status == kExitDone) explain_slow_rank(session, *outcome.slow_rank);
  if (sender) sender->finish(outcome.status == kExitDone ? "done" : "stopped");
  return outcome.status;
}

int train_locked(const Config& config, World& world, const train::SessionOptions& options, SignalWatch& watch) {
  const auto lock = std::make_shared<run::RunLock>(config.run.path(), world);
  const run::RunDirectory run(config);
  watch.set_last_action([lock] {
    lock->release();
    return true;
  });
  std::optional<mlflow::Sender> sender;  // if an error ends the run, its destructor reports the failure
  try {
    return start_and_train(config, world, options, watch, lock, sender);
  } catch (const StoppedBySignal&) {
    if (world.rank() == 0) run.write_status("stopped");
    if (sender) sender->finish("stopped");
    throw;
  }
}

/// Makes the checks of a training start, and reports what a step needs.
int check_start(const Config& config, World& world, const train::SessionOptions& options) {
  const train::Session session(config, world, options);
  if (world.rank() != 0) return kExitDone;
  run::RunLock::require_free(session.run.path());
  session.run.check_can_be_created();
  Config planned = config;
  planned.precision = session.config.precision;
  planned.precision_is_automatic = false;
  log::info("This is a dry run: nothing is trained or written.\n{}", plan_text(planned, world.size(), world.n_nodes()));
  for (const std::string& note : session.notes) log::info("{}", note);
  checkpoint::Reader* from = session.first_checkpoint();
  if (from == nullptr)
    log::info("a training would start: no problem was found");
  else if (from->step() < session.last_step)
    log::info("the training would resume from {} (step {} of {}): no problem was found", from->path(), from->step(),
              session.last_step);
  else
    log::info("nothing is left to do: {} is of step {}, the last one", from->path(), from->step());
  return kExitDone;
}

Config configuration_of(const TrainArguments& arguments) {
  Config config = config::parse(arguments.configuration, arguments.deepspeed);
  for (const std::string& key : arguments.session.allow_change)
    require(config::find_key(key) != nullptr, ErrorCode::config_invalid, "--allow-change: there is no key {}{}", key,
            config::nearest_text(key));
  return config;
}

constexpr const char* kWholeConfiguration = "-";

int print_configuration(const TrainArguments& arguments) {
  const std::string yaml = config::to_yaml(configuration_of(arguments));
  if (arguments.printed == kWholeConfiguration) {
    fmt::print("{}", yaml);
    return kExitDone;
  }
  for (const auto& [key, value] : config::values_in(yaml)) {
    if (key != arguments.printed) continue;
    fmt::print("{}\n", value);
    return kExitDone;
  }
  fail(ErrorCode::config_invalid, "--print-config: there is no key {}{}", arguments.printed,
       config::nearest_text(arguments.printed));
}

int run_training(const TrainArguments& arguments, const Arguments& program) {
  SignalWatch watch;
  hdf5::version();  // HDF5 starts before MPI: otherwise a parallel build of HDF5 would make MPI calls of its own
  Config config;
  World& world = *(current_world() = comm::start_world(program.argc, program.argv, config.comm.watchdog_seconds));
  watch.set_world(world);
  // A file of the configuration may be missing on one node, so an error is reported only when all ranks know it.
  all_agree(world, [&] { config = configuration_of(arguments); });
  world.set_watchdog_seconds(config.comm.watchdog_seconds);
  log::configure(world.rank(), world.size(), world.host(), config.log.all_ranks);
  try {
    if (arguments.dry_run) return check_start(config, world, arguments.session);
    return train_locked(config, world, arguments.session, watch);
  } catch (const StoppedBySignal&) {
    if (world.rank() == 0) log::info("stopped by a signal before the first step: rerun the command to start");
    return kExitStopped;
  }
}

}  // namespace

void add_train(CLI::App& app, Run& run, const Arguments& program) {
  auto arguments = std::make_shared<TrainArguments>();
  CLI::App* command = app.add_subcommand("train", "Train a model, or resume an existing run");
  add_configuration(*command, arguments->configuration);
  add_deepspeed(*command, arguments->deepspeed);
  command->add_flag("--fresh", arguments->session.fresh, "Start over; an existing run is moved aside");
  add_value(*command, "--allow-change", "KEY", arguments->session.allow_change,
            "A key that may differ from the configuration of the resumed run")
      ->allow_extra_args(false);
  command->add_flag("--dry-run", arguments->dry_run,
                    "Check the configuration and report what a step needs, without training");
  command->add_flag("--print-config{-}", arguments->printed,
                    "Print the configuration that results, or with --print-config=KEY the value of a key, and do "
                    "nothing else");
  set_run(*command, run, [arguments, program] {
    return arguments->printed.empty() ? run_training(*arguments, program) : print_configuration(*arguments);
  });
}

}  // namespace lockstep::commands
