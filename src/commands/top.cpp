// lockstep top RUN: shows a run in the terminal while it trains: progress, the curve of the loss, and the waiting times
// of the ranks. It reads only the files of the run, so that it also works on a login node.
#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>

#include "base/file.h"
#include "base/input_check.h"
#include "base/standard_streams.h"
#include "commands/commands.h"
#include "commands/report.h"
#include "commands/top_text.h"
#include "lockstep/error.h"
#include "run/metrics_file.h"
#include "run/run_lock.h"

namespace lockstep::commands {
namespace {

namespace fs = std::filesystem;

Screen screen_of_terminal() {
  winsize size{};
  Screen screen;
  if (::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0 || size.ws_row == 0) return screen;
  return {.width = size.ws_col, .height = size.ws_row};
}

/// Reads the files of a run that is in progress: each call reads what was added since the last call.
class RunReader {
 public:
  explicit RunReader(std::string run) : run_(std::move(run)), metrics_(run::metrics_path(run_)) {}

  std::string text(const Screen& screen) {
    read_metrics();
    return top_text(run_, status(), age_seconds(), progress_, screen);
  }

  std::string status() const {
    constexpr std::uint64_t kMaxBytes = 4096;
    const std::string path = run_ + "/status";
    if (!fs::exists(path)) return "";
    const std::string text = read_file(path, kMaxBytes);
    const std::string status = text.substr(0, text.find('\n'));
    const std::string lost = status == "running" ? run::RunLock::lost_holder(run_) : "";
    return lost.empty() ? status : fmt::format("{}, but its job no longer exists: {}", status, lost);
  }

 private:
  /// A run that is resumed or started over replaces the file by a shorter one, which is then read from its start.
  void read_metrics() {
    std::error_code error;
    const std::uintmax_t size = fs::file_size(metrics_, error);
    if (error) return;
    if (size < read_) {
      read_ = 0;
      progress_ = {};
    }
    run::MetricsReader reader(metrics_, read_);
    while (reader.next()) progress_.add(reader.event());
    read_ = reader.position();
  }

  double age_seconds() const {
    std::error_code error;
    const auto written = fs::last_write_time(metrics_, error);
    if (error) return NAN;
    return std::max(0.0, std::chrono::duration<double>(fs::file_time_type::clock::now() - written).count());
  }

  std::string run_, metrics_;
  std::uintmax_t read_ = 0;  // bytes of complete lines
  RunProgress progress_;
};

void watch(const std::string& run, double every_seconds, bool once) {
  RunReader reader(run);
  const bool redraws = !once && ::isatty(STDOUT_FILENO) == 1;
  for (;;) {
    const std::string text = printable_lines(reader.text(screen_of_terminal()));
    // The screen is erased and not scrolled, so that the table stays in its place.
    fmt::print("{}{}", redraws ? "\033[H\033[2J" : "", text);
    flush_standard_output();
    if (!redraws || reader.status() != "running") return;
    std::this_thread::sleep_for(std::chrono::duration<double>(every_seconds));
  }
}

}  // namespace

void add_top(CLI::App& app, Run& run) {
  struct CommandLine {
    std::string run;
    double every_seconds = 2;
    bool once = false;
  };
  auto options = std::make_shared<CommandLine>();
  CLI::App* command = app.add_subcommand(
      "top", "Show a run in the terminal while it trains: progress, loss, and waiting times of ranks");
  command->add_option("RUN", options->run, "A run directory, such as runs/quickstart")->required();
  command->add_option("--every", options->every_seconds, "Seconds between two updates")
      ->check(CLI::Range(0.1, 3600.0))
      ->capture_default_str();
  command->add_flag("--once", options->once, "Print the state once; the same happens if the output is not a terminal");
  command->callback([options, &run] {
    run = [options] {
      std::string path = options->run;
      while (path.size() > 1 && path.back() == '/') path.pop_back();
      const std::string broken = broken_link_text(path);
      require(fs::is_directory(path), ErrorCode::usage,
              "there is no run {}: expected a run directory, such as runs/quickstart{}", path,
              broken.empty() ? "" : fmt::format("; {}", broken));
      require(fs::exists(path + "/config.yaml"), ErrorCode::usage,
              "{} is not a run directory: it has no config.yaml, which a run writes when it starts", path);
      watch(path, options->every_seconds, options->once);
      return kExitDone;
    };
  });
}

}  // namespace lockstep::commands
