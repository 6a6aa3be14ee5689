// lockstep scaling run: runs a training on several numbers of ranks or nodes. `scaling report` is in
// scaling_report.cpp.
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "base/numbers.h"
#include "commands/commands.h"
#include "commands/report.h"
#include "config/parser.h"
#include "lockstep/error.h"
#include "run/metrics.h"
#include "scaling/case_files.h"
#include "scaling/local_runner.h"
#include "scaling/report.h"
#include "scaling/results.h"
#include "scaling/slurm_submission.h"
#include "scaling/study.h"

namespace lockstep::commands {
namespace {

namespace fs = std::filesystem;
using scaling::Launcher;
using scaling::Scaling;
using scaling::Study;

struct RunArguments {
  std::vector<std::string> configuration;
  std::string directory, ranks, nodes, job;
  int epochs = 0, repeats = 3, ranks_per_node = 0;
  std::int64_t steps = 60, warmup_steps = 10;
  std::uint64_t seed = 1;
  double minutes_per_case = 0;
  bool is_strong = false, is_weak = false, submits = false, is_local = false, is_dry_run = false;
  scaling::SubmitOptions submission;
};

std::string program_path() { return fs::read_symlink("/proc/self/exe").string(); }

std::string absolute(const std::string& path) {
  std::string text = fs::absolute(path).lexically_normal().string();
  while (text.size() > 1 && text.back() == '/') text.pop_back();
  return text;
}

/// What the command line describes.
Study study_of(const RunArguments& arguments, const Config& config) {
  require(arguments.ranks.empty() != arguments.nodes.empty(), ErrorCode::usage,
          "expected --ranks or --nodes with the numbers to run with, such as --ranks 1,2,4");
  const bool has_steps = arguments.epochs == 0;
  require(!has_steps || arguments.steps - arguments.warmup_steps >= scaling::kLeastMeasuredSteps, ErrorCode::usage,
          "--steps: a case of {} steps with a warm-up of {} measures fewer than {}, which the report rejects; use more "
          "--steps or a shorter --warmup",
          arguments.steps, arguments.warmup_steps, scaling::kLeastMeasuredSteps);
  const bool are_nodes = arguments.ranks.empty();
  require(!are_nodes || !arguments.is_local, ErrorCode::usage,
          "--local runs on one machine: give --ranks instead of --nodes, or --submit");
  Study study{.directory = absolute(arguments.directory),
              .working_directory = fs::current_path().string(),
              .scaling = arguments.is_strong ? Scaling::strong
                         : arguments.is_weak ? Scaling::weak
                                             : scaling::scaling_of(config),
              .launcher = arguments.submits || are_nodes ? Launcher::slurm : Launcher::local,
              .steps = has_steps ? arguments.steps : 0,
              .warmup_steps = has_steps ? arguments.warmup_steps : 0,
              .epochs = arguments.epochs,
              .repeats = arguments.repeats,
              .seed = arguments.seed,
              .job = "",
              .build = scaling::build_text(run::versions_json())};
  int ranks_per_node = arguments.ranks_per_node;
  if (study.launcher == Launcher::slurm) {
    study.job = arguments.job.empty() ? scaling::default_job(program_path()) : absolute(arguments.job);
    const int of_job = scaling::ranks_per_node_in(study.job);
    if (ranks_per_node == 0 && are_nodes) ranks_per_node = of_job;
  } else {
    require(arguments.job.empty() && ranks_per_node == 0 && arguments.submission.parallel == 1 &&
                !arguments.submission.shares_nodes,
            ErrorCode::usage, "--job, --ranks-per-node, --parallel and --share-nodes are for Slurm: add --submit");
  }
  const std::vector<int> numbers =
      scaling::sizes_in(are_nodes ? arguments.nodes : arguments.ranks, are_nodes ? "--nodes" : "--ranks",
                        "--repeat sets the number of repeats");
  const auto sizes = scaling::sizes_of(numbers, are_nodes, ranks_per_node);
  study.cases = scaling::make_cases(sizes, arguments.repeats, arguments.seed);
  study.batch = scaling::batch_of(config, study.scaling, sizes.front().ranks);
  // What is wrong with the batch of a case is reported before any case runs.
  for (const scaling::Case& each : study.cases) (void)scaling::configuration_of(study, each, config);
  return study;
}

/// Node-hours of the cases that are not finished, from --minutes-per-case or from the finished cases.
std::string node_hours_text(const Study& study, double minutes_per_case) {
  double node_seconds = 0, seconds = 0;
  int n_timed = 0;
  std::vector<const scaling::Case*> left;
  for (const scaling::Case& each : study.cases) {
    const scaling::CaseFiles files(study, each);
    if (const auto measured = files.measurement(); measured && measured->seconds > 0) {
      seconds += measured->seconds;
      ++n_timed;
    }
    if (!files.is_finished()) left.push_back(&each);
  }
  const bool is_given = minutes_per_case > 0;
  if (!is_given && n_timed == 0)
    return "node-hours: unknown; give --minutes-per-case, or run the first cases, whose time is then used";
  const double per_case = is_given ? 60 * minutes_per_case : seconds / n_timed;
  for (const scaling::Case* each : left) node_seconds += per_case * each->nodes;
  return fmt::format("node-hours: {:.3g} for {} of {:.3g} minutes{}", node_seconds / 3600, counted(left.size(), "case"),
                     per_case / 60, is_given ? "" : ", the mean of those that are finished");
}

int dry_run(const Study& study, const Config& config, const RunArguments& arguments) {
  std::string text = scaling::description_of(study) + "\n";
  int n_printed = 0;
  for (const scaling::Case& each : study.cases) {
    if (scaling::CaseFiles(study, each).is_finished()) continue;
    const std::string after = n_printed++ < arguments.submission.parallel ? "" : "JOB";
    const scaling::Command command =
        study.launcher == Launcher::local
            ? scaling::local_command(study, each, program_path())
            : scaling::sbatch_command(study, each, config, program_path(), arguments.submission, after);
    text += scaling::text_of(command) + "\n";
  }
  if (study.launcher == Launcher::slurm && n_printed > arguments.submission.parallel)
    text += fmt::format("JOB is the job ID that the sbatch {} prints.\n",
                        arguments.submission.parallel == 1
                            ? "before it"
                            : fmt::format("{} lines before it", arguments.submission.parallel));
  print_text("{}{}\nThis is a dry run: nothing is started or written.\n", text,
             node_hours_text(study, arguments.minutes_per_case));
  return kExitDone;
}

int run_study(const RunArguments& arguments) {
  const Config config = config::parse(arguments.configuration);
  const std::string directory = absolute(arguments.directory);
  const Study now = study_of(arguments, config);
  const bool is_resumed = scaling::study_exists(directory);
  Study study = now;
  std::size_t n_added = 0;
  if (is_resumed) {
    study = scaling::read_study(directory);
    scaling::require_unchanged(study, now, config);
    n_added = scaling::extend(study, now);
  } else if (fs::exists(directory)) {
    std::error_code error;
    const bool is_directory = fs::is_directory(directory);
    const bool is_left = is_directory && fs::exists(directory + "/cases");  // by a study that could not be written
    require(is_directory && (is_left || fs::is_empty(directory, error)), ErrorCode::usage,
            "--out: {} is not a study, and not empty; give a new directory", directory);
  }
  if (arguments.is_dry_run) return dry_run(study, config, arguments);
  // Before anything is written, so that the command can be repeated with other sizes.
  for (std::size_t i = is_resumed ? study.cases.size() - n_added : 0; i < study.cases.size(); ++i) {
    const scaling::Case& each = study.cases[i];
    if (study.launcher == Launcher::local || each.repeat > 1) continue;
    const std::string answer = scaling::refusal_of(study, each, config, program_path(), arguments.submission);
    require(answer.empty(), ErrorCode::study_launcher,
            "Slurm cannot start a case of {} on {}, so that nothing was submitted: {}; leave this size out, or choose "
            "another partition (SBATCH_PARTITION; `sinfo` lists the partitions and their nodes)",
            counted(each.ranks, "rank"), counted(each.nodes, "node"), answer);
  }
  std::error_code error;
  fs::create_directories(directory, error);
  require(!error, ErrorCode::system_call, "cannot create the directory {}: {}", directory, error.message());
  const scaling::StudyLock lock(directory);
  if (!is_resumed) scaling::write_study(study, config);
  if (n_added > 0) scaling::write_cases(study);
  print_text("{}: {}{}\n", study.directory, scaling::description_of(study),
             n_added > 0 ? fmt::format("; {} of additional sizes {}", counted(n_added, "case"),
                                       n_added == 1 ? "follows" : "follow")
                         : "");
  const int status = study.launcher == Launcher::local
                         ? scaling::run_locally(study, config, program_path())
                         : scaling::submit(study, config, program_path(), arguments.submission);
  if (arguments.submission.waits && status == kExitDone)
    print_text("\n{}", scaling::text_report(scaling::read_results(directory, {})));
  return status;
}

void add_run(CLI::App& group, Run& run) {
  auto arguments = std::make_shared<RunArguments>();
  CLI::App* command = group.add_subcommand("run", "Run a study, or continue one that is not finished");
  add_configuration(*command, arguments->configuration);
  add_value(*command, "--out", "DIR", arguments->directory, "The directory of the study")->required();
  auto* ranks = add_value(*command, "--ranks", "LIST", arguments->ranks, "Numbers of ranks, such as 1,2,4");
  add_value(*command, "--nodes", "LIST", arguments->nodes, "Numbers of nodes, such as 1,2,4,8; submits to Slurm")
      ->excludes(ranks);
  add_number(*command, "--repeat", arguments->repeats, 1, 1000, "How many times each number of ranks or nodes is run");
  auto* strong = command->add_flag("--strong", arguments->is_strong,
                                   "Keep the global batch; the default if train.global_batch is in effect");
  command
      ->add_flag("--weak", arguments->is_weak,
                 "Keep the batch per rank; the default if train.batch_per_rank is in effect")
      ->excludes(strong);
  auto* submits =
      command->add_flag("--submit", arguments->submits, "Submit each case to Slurm; the default of --nodes");
  command->add_flag("--local", arguments->is_local, "Run the cases with mpirun on this machine; the default of --ranks")
      ->excludes(submits);
  constexpr std::int64_t kMostSteps = 1'000'000;
  auto* steps = add_number(*command, "--steps", arguments->steps, 2, kMostSteps,
                           "Steps of a case, including its warm-up. The default leaves 50, whose mean varies little");
  auto* warmup =
      add_number(*command, "--warmup", arguments->warmup_steps, 0, kMostSteps,
                 "First steps, which are not measured. The report rejects a case that still becomes faster after them");
  add_number(*command, "--epochs", arguments->epochs, 1, 1'000'000,
             "Whole epochs with validation, instead of steps: their time is compared, and the results of the last one")
      ->excludes(steps)
      ->excludes(warmup);
  command->add_option("--seed", arguments->seed, "Determines the order of the cases")->capture_default_str();
  add_number(*command, "--ranks-per-node", arguments->ranks_per_node, 1, 1024,
             "With Slurm; by default what the job script sets, or all ranks of --ranks on one node");
  add_value(*command, "--job", "FILE", arguments->job, "The job script of --submit; by default jobs/scaling.sh");
  add_number(*command, "--parallel", arguments->submission.parallel, 1, 10'000,
             "With Slurm, run up to N cases at the same time, each on nodes of its own. They share the network");
  command->add_flag("--share-nodes", arguments->submission.shares_nodes,
                    "Let other jobs, and other cases, run on the nodes of a case; the report rejects cases that did");
  command->add_flag("--wait", arguments->submission.waits,
                    "Wait until all cases are finished, and print the report. Ctrl-C ends the waiting, not the jobs");
  command->add_flag("--dry-run", arguments->is_dry_run, "Print the commands and the node-hours");
  command->add_option("--minutes-per-case", arguments->minutes_per_case, "For the node-hours of --dry-run")
      ->check(CLI::Range(0.001, 1e6));
  command->footer(
      "Each case keeps no weights and, without --epochs, trains without validation. The same command continues a "
      "study: it runs what is "
      "not finished, in a shuffled order, and never repeats a case that is. With more numbers than before, it adds "
      "their cases.");
  set_run(*command, run, [arguments] { return run_study(*arguments); });
}

}  // namespace

void add_scaling(CLI::App& app, Run& run) {
  CLI::App* group =
      app.add_subcommand("scaling", "Run a training on several numbers of ranks or nodes, and report how it scales");
  group->require_subcommand(1);
  add_run(*group, run);
  add_scaling_report(*group, run);
}

}  // namespace lockstep::commands
