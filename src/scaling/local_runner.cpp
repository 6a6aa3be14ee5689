#include "scaling/local_runner.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <sstream>

#include "base/clock.h"
#include "base/number_text.h"
#include "base/process.h"
#include "base/standard_streams.h"
#include "base/stop_signal.h"
#include "lockstep/error.h"
#include "scaling/case_files.h"
#include "scaling/cases.h"

namespace lockstep::scaling {
namespace {

void print(const std::string& line) {
  fmt::print("{}\n", line);
  flush_standard_output();
}

std::string duration(double seconds) {
  return seconds < 120 ? fmt::format("{:.0f} s", seconds) : fmt::format("{:.0f} min", seconds / 60);
}

enum class Outcome : std::uint8_t { finished, failed, refused, stopped };

class LocalRunner {
 public:
  LocalRunner(const Study& study, const Config& config, std::string program)
      : study_(study), config_(config), program_(std::move(program)) {}

  int run() {
    catch_stop_signals();
    for (std::size_t i = 0; i < study_.cases.size(); ++i) {
      if (CaseFiles(study_, study_.cases[i]).is_finished()) {
        ++n_finished_;
        continue;
      }
      if (stop_requested()) return stopped();
      switch (run_case(i)) {
        case Outcome::stopped:
          return stopped();
        case Outcome::refused:
          // A problem that prevents the start of one case, such as a missing data set, would prevent all of them.
          print("The study ends here, since the program refused to start. Correct the problem and repeat the command.");
          return kExitUsage;
        case Outcome::failed:
          ++n_failed_;
          break;
        case Outcome::finished:
          ++n_finished_;
      }
    }
    const std::string report =
        n_finished_ == 0 ? "" : fmt::format(" `lockstep scaling report {}` reports them.", study_.directory);
    print(fmt::format("{} of {} cases are finished.{}", n_finished_, study_.cases.size(), report));
    if (n_failed_ == 0) return kExitDone;
    print(fmt::format("{} failed: repeat the command to run them again.", n_failed_));
    return kExitFailed;
  }

 private:
  int stopped() const {
    print(fmt::format("Stopped by {}. {} of {} cases are finished: repeat the command to continue.", stop_signal_name(),
                      n_finished_, study_.cases.size()));
    return kExitStopped;
  }

  std::string remaining(std::size_t done_before) const {
    if (n_timed_ == 0) return "";
    std::size_t left = 0;
    for (std::size_t i = done_before; i < study_.cases.size(); ++i)
      left += CaseFiles(study_, study_.cases[i]).is_finished() ? 0 : 1;
    return fmt::format(", about {} left", duration(seconds_ / n_timed_ * static_cast<double>(left)));
  }

  Outcome run_case(std::size_t index) {
    const Case& a_case = study_.cases[index];
    const CaseFiles files(study_, a_case);
    const std::string title = fmt::format("case {} of {}: {}, repeat {}", index + 1, study_.cases.size(),
                                          counted(a_case.ranks, "rank"), a_case.repeat);
    print(fmt::format("{}{}", title, remaining(index)));
    files.prepare(configuration_of(study_, a_case, config_));
    const double began = unix_seconds(), busy = busy_core_seconds(), own = own_core_seconds();
    const Ended ended =
        scaling::run(local_command(study_, a_case, program_), files.output(), [] { return stop_requested(); });
    const double others = busy_cores_of_others(busy, busy_core_seconds(), own_core_seconds() - own, ended.seconds);
    if (ended.was_stopped) return Outcome::stopped;
    if (ended.status != 0 || files.status() != "done") return failed(title, files, ended);
    try {
      Measurement measurement = measure(files.run(), study_.steps, study_.warmup_steps);
      measurement.started_unix = began;
      measurement.seconds = ended.seconds;
      for (Host& host : measurement.hosts) {
        host.machine = machine_id();
        host.cores = n_usable_processors();
        host.busy = others;
      }
      files.finish(measurement);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::study_damaged) throw;
      print(fmt::format("{} failed: {}", title, error.what()));
      return Outcome::failed;
    }
    seconds_ += ended.seconds;
    ++n_timed_;
    print(fmt::format("  finished in {}", duration(ended.seconds)));
    return Outcome::finished;
  }

  static Outcome failed(const std::string& title, const CaseFiles& files, const Ended& ended) {
    print(fmt::format("{} failed with exit status {}; {} says:", title, ended.status, files.output()));
    std::istringstream lines(files.reason_in_output());
    for (std::string line; std::getline(lines, line);) print("  | " + line);
    return ended.status == kExitUsage ? Outcome::refused : Outcome::failed;
  }

  const Study& study_;
  const Config& config_;
  std::string program_;
  int n_finished_ = 0, n_failed_ = 0, n_timed_ = 0;
  double seconds_ = 0;  // total time of n_timed_ cases
};

}  // namespace

Command local_command(const Study& study, const Case& a_case, const std::string& program) {
  const char* given = std::getenv("LOCKSTEP_MPIRUN");
  std::istringstream mpirun(given != nullptr && *given != '\0' ? given : "mpirun --bind-to none");
  Command command{.words = {}, .directory = study.working_directory};
  for (std::string word; mpirun >> word;) command.words.push_back(word);
  const bool is_given_already = std::ranges::find(command.words, "--oversubscribe") != command.words.end();
  if (a_case.ranks > n_usable_processors() && !is_given_already) command.words.emplace_back("--oversubscribe");
  for (const std::string& word : {std::string("-n"), std::to_string(a_case.ranks), program, std::string("train"),
                                  study.directory_of(a_case) + "/config.yaml"})
    command.words.push_back(word);
  return command;
}

int run_locally(const Study& study, const Config& config, const std::string& program) {
  return LocalRunner(study, config, program).run();
}

}  // namespace lockstep::scaling
