#include "scaling/local_runner.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <thread>

#include "base/clock.h"
#include "base/file.h"
#include "base/numbers.h"
#include "base/process.h"
#include "base/signals.h"
#include "base/standard_streams.h"
#include "lockstep/error.h"
#include "scaling/case_files.h"
#include "scaling/measurement.h"

namespace lockstep::scaling {

void print(const std::string& line) {
  fmt::print("{}\n", line);
  flush_standard_output();
}

namespace {

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
    return fmt::format(", about {} left", duration_text(seconds_ / n_timed_ * static_cast<double>(left)));
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
      Measurement measurement = measure(files.run(), study_);
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
    print(fmt::format("  finished in {}", duration_text(ended.seconds)));
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

namespace {

using namespace std::chrono_literals;

/// The arguments of exec(), prepared before fork(): the child may only call async-signal-safe functions.
struct Prepared {
  explicit Prepared(const Command& command) : words(command.words) {
    std::map<std::string, std::string> variables;
    for (char** each = environ; *each != nullptr; ++each) {
      const std::string text = *each;
      variables[text.substr(0, text.find('='))] = text;
    }
    for (const auto& [name, value] : command.environment) variables[name] = fmt::format("{}={}", name, value);
    for (auto& [name, text] : variables) environment.push_back(std::move(text));
    for (std::string& word : words) argv.push_back(word.data());
    for (std::string& text : environment) envp.push_back(text.data());
    argv.push_back(nullptr);
    envp.push_back(nullptr);
  }
  std::vector<std::string> words, environment;
  std::vector<char*> argv, envp;
};

/// Replaces this process by the program. On failure, writes the error number to the pipe.
[[noreturn]] void become(const Prepared& prepared, const Command& command, int out, int errors, int failure) {
  ::setsid();
  ::prctl(PR_SET_PDEATHSIG, SIGTERM);
  for (const int signal : {SIGPIPE, SIGXFSZ, SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2}) ::signal(signal, SIG_DFL);
  const int nothing = ::open("/dev/null", O_RDONLY);
  if (nothing >= 0) ::dup2(nothing, STDIN_FILENO);
  ::dup2(out, STDOUT_FILENO);
  ::dup2(errors, STDERR_FILENO);
  if (command.directory.empty() || ::chdir(command.directory.c_str()) == 0)
    ::execvpe(prepared.argv.front(), prepared.argv.data(), prepared.envp.data());
  const int problem = errno;
  [[maybe_unused]] const auto written = ::write(failure, &problem, sizeof problem);
  ::_exit(127);
}

pid_t start(const Command& command, int out, int errors) {
  const Prepared prepared(command);
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) fail(ErrorCode::system_call, "cannot create a pipe: {}", system_text(errno));
  const Descriptor reading(ends[0]);
  Descriptor writing(ends[1]);
  const pid_t pid = ::fork();
  require(pid >= 0, ErrorCode::system_call, "cannot start a process: {}", system_text(errno));
  if (pid == 0) become(prepared, command, out, errors, ends[1]);
  writing = Descriptor();
  int problem = 0;
  if (::read(reading.get(), &problem, sizeof problem) == sizeof problem) {
    ::waitpid(pid, nullptr, 0);
    fail(ErrorCode::study_launcher, "{} cannot be started{}: {}", command.words.front(),
         command.directory.empty() ? "" : " in " + command.directory, system_text(problem));
  }
  return pid;
}

int status_of(int wait_status) {
  return WIFSIGNALED(wait_status) ? 128 + WTERMSIG(wait_status) : WEXITSTATUS(wait_status);
}

std::string content_of(const Descriptor& file) {
  std::string text(size_bytes(file, "the output of a program"), '\0');
  read_at(file, "the output of a program", std::as_writable_bytes(std::span(text)), 0);
  return text;
}

}  // namespace

std::string text_of(const Command& command) {
  const auto quoted = [](const std::string& word) {
    constexpr std::string_view kPlain = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-+./:=,@%";
    if (!word.empty() && word.find_first_not_of(kPlain) == std::string::npos) return word;
    std::string text = "'";
    for (const char c : word) text += c == '\'' ? std::string("'\\''") : std::string(1, c);
    return text + "'";
  };
  std::string text;
  for (const auto& [name, value] : command.environment) text += fmt::format("{}={} ", name, quoted(value));
  for (const std::string& word : command.words) text += (&word == command.words.data() ? "" : " ") + quoted(word);
  return text;
}

Ended run(const Command& command, const std::string& output, const std::function<bool()>& must_stop) {
  const Descriptor file = open_file(output, O_WRONLY | O_CREAT | O_TRUNC);
  const Clock::time_point begin = Clock::now();
  const pid_t pid = start(command, file.get(), file.get());
  Ended ended;
  Clock::time_point stopped;
  int wait_status = 0;
  for (;;) {
    const pid_t found = ::waitpid(pid, &wait_status, WNOHANG);
    if (found == pid) break;
    require(found == 0 || errno == EINTR, ErrorCode::system_call, "cannot wait for a process: {}", system_text(errno));
    if (!ended.was_stopped && must_stop()) {
      ended.was_stopped = true;
      stopped = Clock::now();
      ::kill(pid, SIGTERM);
    }
    constexpr double kPatienceSeconds = 10;
    if (ended.was_stopped && seconds_since(stopped) > kPatienceSeconds) ::kill(-pid, SIGKILL);
    std::this_thread::sleep_for(20ms);
  }
  if (ended.was_stopped) ::kill(-pid, SIGKILL);  // processes that the program has left behind
  ended.status = status_of(wait_status);
  ended.seconds = seconds_since(begin);
  return ended;
}

Captured capture(const Command& command) {
  const std::string folder = std::filesystem::temp_directory_path().string() + "/lockstep";
  const Descriptor out = create_unnamed_file(folder), errors = create_unnamed_file(folder);
  const pid_t pid = start(command, out.get(), errors.get());
  int wait_status = 0;
  while (::waitpid(pid, &wait_status, 0) < 0)
    require(errno == EINTR, ErrorCode::system_call, "cannot wait for a process: {}", system_text(errno));
  return {.status = status_of(wait_status), .output = content_of(out), .errors = content_of(errors)};
}

double busy_core_seconds() {
  std::ifstream in("/proc/stat");
  std::string name;
  double user = 0, nice = 0, system = 0, idle = 0, waiting = 0, irq = 0, softirq = 0;
  if (!(in >> name >> user >> nice >> system >> idle >> waiting >> irq >> softirq) || name != "cpu") return kUnknown;
  return (user + nice + system + irq + softirq) / static_cast<double>(::sysconf(_SC_CLK_TCK));
}

double busy_cores_of_others(double before, double after, double own_seconds, double elapsed_seconds) {
  return elapsed_seconds > 0 ? std::max(0.0, (after - before - own_seconds) / elapsed_seconds) : kUnknown;
}

double own_core_seconds() {
  const auto seconds = [](const timeval& t) { return static_cast<double>(t.tv_sec) + 1e-6 * t.tv_usec; };
  double sum = 0;
  for (const auto who : {RUSAGE_SELF, RUSAGE_CHILDREN}) {
    rusage usage{};
    ::getrusage(who, &usage);
    sum += seconds(usage.ru_utime) + seconds(usage.ru_stime);
  }
  return sum;
}

std::string machine_id() {
  std::ifstream in("/proc/sys/kernel/random/boot_id");
  std::string id;
  in >> id;
  return id;
}

}  // namespace lockstep::scaling
