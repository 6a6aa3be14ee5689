#include "scaling/slurm_submission.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <regex>
#include <set>
#include <sstream>

#include "base/file.h"
#include "base/standard_streams.h"
#include "lockstep/error.h"
#include "scaling/case_files.h"
#include "scaling/cases.h"

namespace lockstep::scaling {
namespace {

namespace fs = std::filesystem;

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

void print(const std::string& line) {
  fmt::print("{}\n", line);
  flush_standard_output();
}

std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

/// Which of these jobs are waiting or running. squeue fails for a single job that it no longer knows.
std::set<std::string> queued_jobs(const std::set<std::string>& jobs) {
  if (jobs.empty()) return {};
  const Captured captured =
      capture({.words = {"squeue", "--noheader", "--format=%A", fmt::format("--jobs={}", fmt::join(jobs, ","))}});
  const bool is_unknown = captured.errors.find("Invalid job id") != std::string::npos;
  require(captured.status == 0 || is_unknown, ErrorCode::study_launcher, "squeue failed with exit status {}: {}",
          captured.status, first_line(captured.errors));
  std::set<std::string> queued;
  std::istringstream lines(captured.output);
  for (std::string job; lines >> job;) queued.insert(job);
  return queued;
}

/// True if the run of the case is done; its measurement is then written.
bool collect(const Study& study, const Case& a_case) {
  const CaseFiles files(study, a_case);
  try {
    const auto measurement = files.measurement_of_run(study);
    if (measurement) files.finish(*measurement);
    return measurement.has_value();
  } catch (const Error& error) {
    if (error.code() != ErrorCode::study_damaged) throw;
    print(fmt::format("{} is repeated: {}", a_case.name, error.what()));
    return false;
  }
}

std::string submit_case(const Study& study, const Case& a_case, const Config& config, const std::string& program,
                        const std::string& after) {
  const CaseFiles files(study, a_case);
  files.prepare(configuration_of(study, a_case, config));
  const Captured captured = capture(sbatch_command(study, a_case, config, program, after));
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
                       const std::string& after) {
  const std::string folder = study.directory_of(a_case);
  require(folder.find_first_of(" \t\n") == std::string::npos, ErrorCode::usage,
          "--out: job scripts split their arguments at blanks, so the directory {} must not have any", folder);
  Command command{
      .words = {"sbatch", "--parsable", "--job-name=" + a_case.name, fmt::format("--nodes={}", a_case.nodes),
                fmt::format("--ntasks-per-node={}", a_case.ranks_per_node()), "--exclusive", "--no-requeue",
                "--chdir=" + study.working_directory, "--output=" + folder + "/output.txt"},
      .directory = study.working_directory};
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

int submit(const Study& study, const Config& config, const std::string& program) {
  std::set<std::string> jobs;
  for (const Case& each : study.cases) {
    const CaseFiles files(study, each);
    if (!files.is_finished() && !files.job().empty()) jobs.insert(files.job());
  }
  const std::set<std::string> queued = queued_jobs(jobs);
  int n_finished = 0, n_queued = 0, n_submitted = 0;
  // A new job also waits for those that are still queued, so that no two cases run at the same time.
  std::string last;
  for (const Case& each : study.cases)
    if (const std::string job = CaseFiles(study, each).job(); queued.contains(job) && job.size() >= last.size())
      last =
          std::max(last, job, [](const auto& a, const auto& b) { return std::stoll("0" + a) < std::stoll("0" + b); });
  for (const Case& each : study.cases) {
    const CaseFiles files(study, each);
    if (files.is_finished()) {
      ++n_finished;
    } else if (queued.contains(files.job())) {
      ++n_queued;
    } else if (collect(study, each)) {
      ++n_finished;
    } else {
      const bool is_repeated = files.has_begun();
      last = submit_case(study, each, config, program, last);
      ++n_submitted;
      print(fmt::format("{}: job {}, {} {} on {} {}{}", each.name, last, each.ranks, each.ranks == 1 ? "rank" : "ranks",
                        each.nodes, each.nodes == 1 ? "node" : "nodes",
                        is_repeated ? "; repeated, since the last attempt did not finish" : ""));
    }
  }
  print(fmt::format("{} of {} cases are finished, {} queued, {} submitted.{}", n_finished, study.cases.size(), n_queued,
                    n_submitted,
                    n_finished == std::ssize(study.cases)
                        ? fmt::format(" `lockstep scaling report {}` reports them.", study.directory)
                        : " When the jobs have ended, repeat the command to collect their results."));
  return kExitDone;
}

}  // namespace lockstep::scaling
