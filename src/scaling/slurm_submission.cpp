#include "scaling/slurm_submission.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <thread>

#include "base/clock.h"
#include "base/file.h"
#include "base/numbers.h"
#include "base/process.h"
#include "base/signals.h"
#include "lockstep/error.h"
#include "scaling/case_files.h"

namespace lockstep::scaling {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;

std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

std::string without_last_break(std::string text) { return text.erase(text.find_last_not_of('\n') + 1); }

/// The jobs that are waiting or running, and their states. squeue fails for a single job that it no longer knows.
std::map<std::string, std::string> queued_jobs(const std::set<std::string>& jobs) {
  if (jobs.empty()) return {};
  const Captured captured =
      capture({.words = {"squeue", "--noheader", "--format=%A %T", fmt::format("--jobs={}", fmt::join(jobs, ","))}});
  const bool is_unknown = captured.errors.find("Invalid job id") != std::string::npos;
  require(captured.status == 0 || is_unknown, ErrorCode::study_launcher, "squeue failed with exit status {}: {}",
          captured.status, first_line(captured.errors));
  std::map<std::string, std::string> queued;
  std::istringstream lines(captured.output);
  for (std::string job, state; lines >> job >> state;) queued[job] = state;
  return queued;
}

/// True if the run of the case is done; its measurement is then written. `problem`: why it cannot be used.
bool collect(const Study& study, const Case& a_case, std::string& problem) {
  const CaseFiles files(study, a_case);
  try {
    const auto measurement = files.measurement_of_run(study);
    if (measurement) files.finish(*measurement);
    return measurement.has_value();
  } catch (const Error& error) {
    if (error.code() != ErrorCode::study_damaged) throw;
    problem = error.what();
    return false;
  }
}

std::string submit_case(const Study& study, const Case& a_case, const Config& config, const std::string& program,
                        const SubmitOptions& options, const std::string& after) {
  const CaseFiles files(study, a_case);
  files.prepare(configuration_of(study, a_case, config));
  const Captured captured = capture(sbatch_command(study, a_case, config, program, options, after));
  require(captured.status == 0, ErrorCode::study_launcher, "sbatch refused the case {}: {}", a_case.name,
          first_line(captured.errors));
  const std::string line = first_line(captured.output);  // "123", or "123;cluster"
  const std::string id = line.substr(0, line.find(';'));
  require(!id.empty() && id.find_first_not_of("0123456789") == std::string::npos, ErrorCode::study_launcher,
          "sbatch printed \"{}\" instead of the id of a job", line);
  files.write_job(id);
  return id;
}

}  // namespace

std::string default_job(const std::string& program) {
  const fs::path beside = fs::path(program).parent_path().parent_path();
  // A program for one type of GPU, such as build/sm_90/lockstep, is one folder deeper in the repository.
  std::vector<fs::path> folders{beside, beside / "share/lockstep", beside.parent_path()};
  if (const std::string home = environment("LOCKSTEP_HOME"); !home.empty()) folders.insert(folders.begin(), home);
  for (const fs::path& folder : folders)
    if (const fs::path job = folder / "jobs/scaling.sh"; fs::exists(job)) return fs::absolute(job).string();
  fail(ErrorCode::study_launcher, "there is no jobs/scaling.sh in {}: give a job script with --job",
       fmt::join(std::vector<std::string>(folders.begin(), folders.end()), " or "));
}

int ranks_per_node_in(const std::string& job) {
  require(fs::is_regular_file(job), ErrorCode::usage, "there is no job script {}", job);
  std::string tasks, gpus;
  std::istringstream lines(read_file(job, 1 << 20));
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with("#SBATCH")) continue;
    std::smatch match;
    if (std::regex_search(line, match, std::regex("--ntasks-per-node[= ]([0-9]+)"))) tasks = match[1];
    if (std::regex_search(line, match, std::regex("--gpus-per-node[= ]([A-Za-z_][^ :]*:)?([0-9]+)"))) gpus = match[2];
  }
  const std::string number = tasks.empty() ? gpus : tasks;
  return number.empty() ? 1 : std::max(1, std::atoi(number.c_str()));
}

Command sbatch_command(const Study& study, const Case& a_case, const Config& config, const std::string& program,
                       const SubmitOptions& options, const std::string& after) {
  const std::string folder = study.directory_of(a_case);
  require(folder.find_first_of(" \t\n") == std::string::npos, ErrorCode::usage,
          "--out: job scripts split their arguments at blanks, so the directory {} must not have any", folder);
  // squeue shows the first eight characters of a name, so the ranks and the repeat come before the study.
  const std::string name =
      fmt::format("r{}.{}-{}", a_case.ranks, a_case.repeat, fs::path(study.directory).filename().string());
  Command command{.words = {"sbatch", "--parsable", "--job-name=" + name, fmt::format("--nodes={}", a_case.nodes),
                            fmt::format("--ntasks-per-node={}", a_case.ranks_per_node()), "--no-requeue",
                            "--chdir=" + study.working_directory, "--output=" + folder + "/output.txt"},
                  .directory = study.working_directory};
  if (!options.shares_nodes) command.words.insert(command.words.begin() + 5, "--exclusive");
  const bool uses_gpus = config.device != "cpu";
  if (uses_gpus) command.words.push_back(fmt::format("--gpus-per-node={}", a_case.ranks_per_node()));
  if (!after.empty()) command.words.push_back("--dependency=afterany:" + after);
  command.words.push_back(study.job);
  // The file has all keys. job.sh reads the keys below from its arguments, where the last one counts.
  const std::string overrides =
      fmt::format("{}/config.yaml run.directory={} run.name=run device={}", folder, folder, uses_gpus ? "cuda" : "cpu");
  command.environment = {{"LOCKSTEP_CASE", folder}, {"OVERRIDES", overrides}};
  if (environment("LOCKSTEP").empty()) command.environment.emplace_back("LOCKSTEP", program);
  const fs::path home = fs::path(study.job).parent_path().parent_path();
  if (environment("LOCKSTEP_HOME").empty() && fs::exists(home / "jobs/lib/job.sh"))
    command.environment.emplace_back("LOCKSTEP_HOME", home.string());
  return command;
}

std::string refusal_of(const Study& study, const Case& a_case, const Config& config, const std::string& program,
                       const SubmitOptions& options) {
  Command command = sbatch_command(study, a_case, config, program, options, "");
  command.words.insert(command.words.begin() + 1, "--test-only");
  const Captured captured = capture(command);
  if (captured.status == 0) return "";
  const std::string answer = without_last_break(captured.errors);
  return answer.substr(answer.rfind('\n') + 1);
}

namespace {

class Submission {
 public:
  Submission(const Study& study, const Config& config, std::string program, const SubmitOptions& options)
      : study_(study), config_(config), program_(std::move(program)), options_(options) {}

  int run() {
    if (options_.waits) catch_stop_signals();
    std::set<std::string> jobs;
    for (const Case& each : study_.cases)
      if (const CaseFiles files(study_, each); !files.is_finished() && !files.job().empty()) jobs.insert(files.job());
    queued_ = queued_jobs(jobs);
    for (const auto& [job, state] : queued_) before_.push_back(job);
    std::ranges::sort(before_, {}, [](const std::string& job) { return std::stoll("0" + job); });
    for (const Case& each : study_.cases)
      if (!stop_requested()) begin(each);
    const bool is_complete = n_finished_ == std::ssize(study_.cases);
    print(fmt::format("{} of {} cases are finished, {} queued, {} submitted.{}", n_finished_, study_.cases.size(),
                      awaited_.size() - new_.size(), new_.size(),
                      is_complete      ? fmt::format(" `lockstep scaling report {}` reports them.", study_.directory)
                      : options_.waits ? ""
                                       : " When the jobs have ended, repeat the command to collect their results; "
                                         "--wait waits for them."));
    return options_.waits && !is_complete ? wait() : kExitDone;
  }

 private:
  /// The jobs that must have ended before the next one starts, so that no more than options_.parallel run at the same
  /// time: the new job that many places before it or, for the first ones, the jobs that were queued before.
  std::string jobs_before() const {
    const auto parallel = static_cast<std::size_t>(options_.parallel);
    if (new_.size() >= parallel) return new_[new_.size() - parallel];
    const std::size_t n = before_.size() - std::min(before_.size(), parallel - 1 - new_.size());
    return fmt::format("{}", fmt::join(before_.begin(), before_.begin() + static_cast<std::ptrdiff_t>(n), ":"));
  }

  void begin(const Case& a_case) {
    const CaseFiles files(study_, a_case);
    std::string problem;
    if (files.is_finished() || (!queued_.contains(files.job()) && collect(study_, a_case, problem))) {
      ++n_finished_;
      return;
    }
    if (!queued_.contains(files.job())) {
      if (const std::string answer = refusal_of(study_, a_case, config_, program_, options_); !answer.empty())
        return print(fmt::format("{} is skipped, since Slurm cannot start it: {}", a_case.name, answer));
      const bool is_repeated = files.has_begun();
      new_.push_back(submit_case(study_, a_case, config_, program_, options_, jobs_before()));
      print(fmt::format("{}: job {}, {} on {}{}{}", a_case.name, new_.back(), counted(a_case.ranks, "rank"),
                        counted(a_case.nodes, "node"),
                        is_repeated ? "; repeated, since the last attempt did not finish" : "",
                        problem.empty() ? "" : ": " + problem));
    }
    awaited_.push_back(&a_case);
  }

  /// Waits until no case is awaited any more. Prints a line whenever something changes.
  int wait() {
    std::string last;
    for (double pause_seconds = 1; !awaited_.empty();
         pause_seconds = std::min(1.5 * pause_seconds, kMostPauseSeconds)) {
      const auto begin = Clock::now();
      while (seconds_since(begin) < pause_seconds && !stop_requested()) std::this_thread::sleep_for(100ms);
      if (stop_requested()) return stopped();
      std::string line;
      try {
        queued_ = queued_jobs(awaited_jobs());
        std::erase_if(awaited_, [&](const Case* each) { return has_ended(*each); });
        const auto n_running = std::ranges::count_if(queued_, [](const auto& job) { return job.second != "PENDING"; });
        line = fmt::format("{} of {} cases are finished, {} running, {} waiting.", n_finished_, study_.cases.size(),
                           n_running, std::ssize(queued_) - n_running);
      } catch (const Error& error) {  // the controller of Slurm may be busy for minutes
        if (error.code() != ErrorCode::study_launcher) throw;
        line = fmt::format("{}; trying again", error.what());
      }
      if (line != last) print(line);
      last = line;
    }
    if (n_finished_ == std::ssize(study_.cases)) return kExitDone;
    print(fmt::format("{} not finished: repeat the command to run what is missing.",
                      counted(std::ssize(study_.cases) - n_finished_, "case")));
    return kExitFailed;
  }

  bool has_ended(const Case& a_case) {
    const CaseFiles files(study_, a_case);
    std::string problem;
    if (queued_.contains(files.job())) return false;
    if (collect(study_, a_case, problem)) return ++n_finished_ > 0;
    const auto gone = gone_since_.emplace(a_case.name, Clock::now()).first->second;
    if (files.status() != "failed" && seconds_since(gone) < kPatienceSeconds) return false;
    print(fmt::format("{} was not finished by job {}; {} says:\n{}", a_case.name, files.job(), files.output(),
                      problem.empty() ? without_last_break(files.reason_in_output()) : problem));
    return true;
  }

  std::set<std::string> awaited_jobs() const {
    std::set<std::string> jobs;
    for (const Case* each : awaited_) jobs.insert(CaseFiles(study_, *each).job());
    return jobs;
  }

  int stopped() const {
    print(
        fmt::format("Stopped waiting ({}). {} of {} cases are finished; the jobs of the others stay in the queue: "
                    "repeat the command to wait again, or end them with `scancel {}`.",
                    stop_signal_name(), n_finished_, study_.cases.size(), fmt::join(awaited_jobs(), " ")));
    return kExitStopped;
  }

  static constexpr double kMostPauseSeconds = 15;  // between two calls of squeue
  // A network file system may show the last files of a job only some seconds after its end.
  static constexpr double kPatienceSeconds = 10;

  const Study& study_;
  const Config& config_;
  const std::string program_;
  const SubmitOptions& options_;
  std::map<std::string, std::string> queued_;  // jobs, and their states
  std::vector<std::string> before_, new_;      // jobs that were queued before, and those of this command
  std::vector<const Case*> awaited_;
  std::map<std::string, Clock::time_point> gone_since_;  // cases whose jobs have left the queue
  std::ptrdiff_t n_finished_ = 0;
};

}  // namespace

int submit(const Study& study, const Config& config, const std::string& program, const SubmitOptions& options) {
  return Submission(study, config, program, options).run();
}

}  // namespace lockstep::scaling
