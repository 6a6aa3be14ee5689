// lockstep train: from a configuration to a trained model; continues by itself from the newest good checkpoint.
#include <CLI/CLI.hpp>
#include <memory>
#include <string>
#include <vector>

#include "base/current_world.h"
#include "base/failure.h"
#include "base/stop_signal.h"
#include "checkpoint/checkpoint.h"
#include "comm/world.h"
#include "commands/commands.h"
#include "commands/plan_text.h"
#include "config/parser.h"
#include "config/table.h"
#include "data/hdf5_version.h"
#include "lockstep/error.h"
#include "lockstep/log.h"
#include "train/banner.h"
#include "train/run_lock.h"
#include "train/session.h"
#include "train/trainer.h"

namespace lockstep::commands {

namespace {

struct TrainArguments {
  std::vector<std::string> configuration;
  train::SessionOptions session;
  bool dry_run = false;
};

int run_training(const TrainArguments& given, const Arguments& program) {
  const Config config = config::parse(given.configuration);
  for (const std::string& key : given.session.allow_change)
    require(config::find_key(key) != nullptr, ErrorCode::config_unknown_key,
            "--allow-change: there is no key {}; the nearest is {}", key, config::nearest_key(key));
  catch_stop_signals();
  data::hdf5_version();  // HDF5 starts before MPI: a parallel build of it would else make MPI calls of its own
  World& world = *(current_world() = comm::start_world(program.argc, program.argv, config.comm.watchdog_seconds));
  log::configure(world.rank(), world.size(), world.host(), config.log.all_ranks);
  if (given.dry_run) {
    if (world.rank() == 0)
      log::info("a dry run: nothing is trained or written\n{}", plan_report(config, world.size()).text);
    return 0;
  }
  const train::RunLock lock(config.run.path(), world);
  train::Session session(config, world, given.session);
  if (session.leader()) {
    session.run.create();
    for (const std::string& name : checkpoint::remove_partials(session.run.checkpoints()))
      session.notes.push_back(fmt::format("removed what an interrupted save left: {}", name));
    session.run.write_file("config.yaml", config::to_yaml(session.config));
    session.run.write_status("running");
  }
  world.barrier();
  on_failure([run = session.run] { run.write_status("failed"); });
  if (session.leader() || config.log.all_ranks) log::open_file(session.run.file("log.txt"));
  train::write_banner(session);
  const int status = train::train(session, lock);
  if (session.leader() && status == kExitDone) log::info("done: {} steps; {}", session.last_step, session.run.path());
  return status;
}

}  // namespace

void add_train(CLI::App& app, Run& run, const Arguments& program) {
  auto given = std::make_shared<TrainArguments>();
  CLI::App* command = app.add_subcommand("train", "train a model; continues a run that is there already");
  command->add_option("CONFIG", given->configuration, "YAML files and key=value overrides; the later wins")->required();
  command->add_flag("--fresh", given->session.fresh, "start over; a run that is there already is moved aside");
  command
      ->add_option("--allow-change", given->session.allow_change,
                   "a key that may differ from the run that is continued")
      ->type_name("KEY")
      ->allow_extra_args(false);
  command->add_flag("--dry-run", given->dry_run, "check the configuration and say what the step needs");
  command->callback([given, &run, program] { run = [given, program] { return run_training(*given, program); }; });
}

}  // namespace lockstep::commands
