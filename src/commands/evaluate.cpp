// lockstep evaluate: the task's measures of a checkpoint on the validation set, each sample counted once.
#include <CLI/CLI.hpp>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/clock.h"
#include "base/current_world.h"
#include "comm/world.h"
#include "commands/commands.h"
#include "commands/report.h"
#include "config/parser.h"
#include "hdf5/version.h"
#include "lockstep/error.h"
#include "lockstep/log.h"
#include "lockstep/ops/step_scalars.h"
#include "train/evaluation.h"
#include "train/session.h"

namespace lockstep::commands {

namespace {

struct EvaluateArguments {
  std::vector<std::string> configuration;
  std::string checkpoint, json;
};

int run_evaluation(const EvaluateArguments& arguments, const Arguments& program) {
  const Config config = config::parse(arguments.configuration);
  require(!config.data.validation.empty(), ErrorCode::usage, "data.validation names no data set to evaluate on");
  hdf5::version();  // as in train: before MPI
  World& world = *(current_world() = comm::start_world(program.argc, program.argv, config.comm.watchdog_seconds));
  log::configure(world.rank(), world.size(), world.host(), config.log.all_ranks);
  train::Session session(config, world, {.allow_change = {}, .checkpoint = arguments.checkpoint});
  if (session.leader())
    for (const std::string& note : session.notes) log::info("{}", note);
  const Clock::time_point begin = Clock::now();
  const tasks::Task& task = *session.task;
  const LossSums sums = train::evaluate(session, task.validation_set(), "evaluation").value();
  const double seconds = seconds_since(begin);
  if (!session.leader()) return 0;
  const tasks::CountUnit& unit = task.count_unit();
  const auto count = static_cast<std::int64_t>(sums.count);
  const double rate = sums.count / seconds;
  nlohmann::ordered_json object = {{"event", "evaluation"},
                                   {"checkpoint", arguments.checkpoint},
                                   {"step", session.progress.step},
                                   {unit.name, count}};
  std::string measures;
  for (const tasks::Measure& measure : task.measures()) {
    const double value = measure.of(sums);
    object[measure.key] = value;
    measures +=
        fmt::format("{}{} {}", measures.empty() ? "" : ", ", measure.key, measure.text(value, measure.result_digits));
  }
  object.update({{"seconds", seconds}, {unit.rate_key, rate}, {"ranks", world.size()}});
  report(arguments.json, object,
         fmt::format("{} (step {}) on {}: {} of {} {}, {:.1f} {}\n", arguments.checkpoint, session.progress.step,
                     task.validation_set()->info().path, measures, count, unit.name, rate, unit.rate_unit));
  return 0;
}

}  // namespace

void add_evaluate(CLI::App& app, Run& run, const Arguments& program) {
  auto arguments = std::make_shared<EvaluateArguments>();
  CLI::App* command = app.add_subcommand("evaluate", "Evaluate a checkpoint on data.validation");
  command
      ->add_option("CONFIG", arguments->configuration,
                   "YAML files and key=value overrides; later ones override earlier ones")
      ->required();
  command->add_option("--checkpoint", arguments->checkpoint, "The checkpoint to evaluate")->required();
  add_json(*command, arguments->json);
  command->callback(
      [arguments, &run, program] { run = [arguments, program] { return run_evaluation(*arguments, program); }; });
}

}  // namespace lockstep::commands
