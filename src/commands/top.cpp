// lockstep top RUN: shows a run in the terminal while it trains: progress, the curve of the loss, and the waiting times
// of the ranks. It reads only the files of the run, so that it also works on a login node.
#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/file.h"
#include "base/model_files.h"
#include "base/numbers.h"
#include "base/standard_streams.h"
#include "commands/commands.h"
#include "commands/model_argument.h"
#include "commands/report.h"
#include "run/metrics_file.h"
#include "run/run_lock.h"

namespace lockstep::commands {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;
using run::number_in;

/// What metrics.jsonl tells. Events are added in the order of the file.
struct RunProgress {
  std::optional<Json> step, evaluation;                   // the last event of each kind
  std::vector<std::pair<std::int64_t, double>> losses{};  // (step, loss) of every logged step whose loss is finite

  /// An object that is not an event of a run is ignored.
  void add(Json object) {
    const std::string event = run::text_in(object, "event");
    if (event == "evaluation") evaluation = std::move(object);
    if (event != "step") return;
    const double number = number_in(object, "step"), loss = number_in(object, "loss");
    if (std::isfinite(number) && std::isfinite(loss)) losses.emplace_back(static_cast<std::int64_t>(number), loss);
    step = std::move(object);
  }
};

struct Screen {
  int width = 80, height = 24;  // in characters; the text may be taller if too few ranks can be left out
};

// ------------------------------------------------------------------------------------------------------- the text

std::string text_of(double value, const char* unit = "", int digits = 4) {
  return std::isfinite(value) ? fmt::format("{:.{}g}{}", value, digits, unit) : "-";
}

std::string bar_text(double part, int width) {
  const int filled = static_cast<int>(std::clamp(part, 0.0, 1.0) * width);
  return fmt::format("[{}{}]", std::string(static_cast<std::size_t>(filled), '='),
                     std::string(static_cast<std::size_t>(width - filled), ' '));
}

std::string figures_text(const Json& step) {
  const std::string unit = run::unit_of(step), rate_key = unit + "_per_second";
  std::string text = fmt::format("epoch {}", text_of(number_in(step, "epoch")));
  for (const char* key : {"loss", "accuracy", "perplexity"})
    if (step.contains(key)) text += fmt::format("   {} {}", key, text_of(number_in(step, key)));
  text += fmt::format("   learning rate {}\n", text_of(number_in(step, "learning_rate")));
  const std::string loss_rate_key = "loss_" + rate_key;
  const std::string in_loss = step.contains(loss_rate_key)
                                  ? fmt::format(" ({} in the loss)", text_of(number_in(step, loss_rate_key), "", 5))
                                  : "";
  text += fmt::format("{} {}/s{}   {} per step", text_of(number_in(step, rate_key), "", 5), unit, in_loss,
                      text_of(number_in(step, "step_seconds"), " s"));
  if (step.contains("model_flops_rate")) text += "   " + flops_rate_text(number_in(step, "model_flops_rate"));
  if (step.contains("model_flops_utilization"))
    text += "   MFU " + text_of(100 * number_in(step, "model_flops_utilization"), " %", 3);
  const double skipped = number_in(step, "skipped_steps");
  if (skipped > 0) text += fmt::format("   skipped steps {:.0f}", skipped);
  return text + "\n";
}

std::string evaluation_text(const Json& evaluation) {
  std::string text = fmt::format("evaluated after step {}:", text_of(number_in(evaluation, "step"), "", 12));
  for (const char* key : {"loss", "accuracy", "perplexity", "rouge_l", "exact_match", "ema_loss", "ema_accuracy"})
    if (evaluation.contains(key)) text += fmt::format("   {} {}", key, text_of(number_in(evaluation, key)));
  return text + "\n";
}

/// The ranks that the others wait for come first: they wait least themselves.
std::string ranks_text(const Json& step, std::size_t n_shown) {
  if (!step.contains("per_rank") || !step["per_rank"].is_object()) return "";
  const std::vector<double> losses = run::of_ranks(step, "loss"), data = run::of_ranks(step, "data_wait_seconds"),
                            others = run::of_ranks(step, "exposed_communication_seconds"),
                            memory = run::of_ranks(step, "memory_bytes"), busy = run::of_ranks(step, "utilisation");
  const std::vector<std::string> hosts = run::hosts_of(step);
  const auto at = [](const std::vector<double>& values, std::size_t i) {
    return i < values.size() ? values[i] : std::nan("");
  };
  std::vector<std::size_t> order(losses.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, {}, [&](std::size_t i) { return std::isfinite(at(others, i)) ? others[i] : 0.0; });
  const double step_ms = 1e3 * number_in(step, "step_seconds");
  std::string text = fmt::format("{:>5}  {:<16} {:>10} {:>16} {:>18} {:>12} {:>12}\n", "rank", "host", "loss",
                                 "waits for data", "waits for others", "memory", "utilisation");
  for (const std::size_t i : order) {
    if (n_shown-- == 0) break;
    const auto wait = [&](double seconds) {
      return std::isfinite(seconds) && step_ms > 0
                 ? fmt::format("{:.1f} ms {:3.0f} %", 1e3 * seconds, 1e5 * seconds / step_ms)
                 : "-";
    };
    text += fmt::format("{:>5}  {:<16} {:>10} {:>16} {:>18} {:>12} {:>12}\n", i,
                        i < hosts.size() && !hosts[i].empty() ? hosts[i].substr(0, 16) : "-", text_of(at(losses, i)),
                        wait(at(data, i)), wait(at(others, i)), text_of(at(memory, i) / (1 << 20), " MiB"),
                        text_of(100 * at(busy, i), " %", 3));
  }
  return text;
}

/// The means of the points in each of up to `width` parts of the x axis, drawn in `height` lines with two labels of the
/// y axis. Empty for fewer than two points.
std::string curve_text(const std::vector<std::pair<std::int64_t, double>>& points, int width, int height) {
  constexpr int kLabel = 10;  // characters of a label of the y axis
  const int columns = width - kLabel - 2;
  if (points.size() < 2 || columns < 2 || height < 2) return "";
  const std::int64_t first = points.front().first, last = std::max(points.back().first, first + 1);
  std::vector<double> sums(static_cast<std::size_t>(columns)), counts(sums);
  for (const auto& [step, value] : points) {
    const double part = static_cast<double>(step - first) / static_cast<double>(last - first);
    const auto column = static_cast<std::size_t>(std::clamp(part, 0.0, 1.0) * (columns - 1));
    sums[column] += value;
    counts[column] += 1;
  }
  double low = INFINITY, high = -INFINITY;
  for (std::size_t i = 0; i < sums.size(); ++i) {
    if (counts[i] == 0) continue;
    sums[i] /= counts[i];
    low = std::min(low, sums[i]);
    high = std::max(high, sums[i]);
  }
  const double range = high > low ? high - low : 1;
  std::vector<std::string> lines(static_cast<std::size_t>(height), std::string(static_cast<std::size_t>(columns), ' '));
  for (std::size_t i = 0; i < sums.size(); ++i) {
    if (counts[i] > 0) lines[static_cast<std::size_t>(std::lround((high - sums[i]) / range * (height - 1)))][i] = '*';
  }
  std::string text;
  for (std::size_t i = 0; i < lines.size(); ++i) {
    const std::string label = i == 0 ? text_of(high) : i + 1 == lines.size() ? text_of(low) : "";
    lines[i].erase(lines[i].find_last_not_of(' ') + 1);
    text += fmt::format("{:>{}} |{}\n", label, kLabel, lines[i]);
  }
  const std::string from = fmt::format("step {}", first), to = fmt::format("{}", points.back().first);
  const int gap = std::max(1, columns - static_cast<int>(from.size() + to.size()));
  return text +
         fmt::format("{:>{}}  {}{}{}\n", "loss", kLabel, from, std::string(static_cast<std::size_t>(gap), ' '), to);
}

/// `status`: the content of RUN/status. `age_seconds`: the time since metrics.jsonl was last written.
std::string top_text(const std::string& run, const std::string& status, double age_seconds, const RunProgress& progress,
                     const Screen& screen) {
  std::string text = fmt::format("{}   {}   {}\n", run, status.empty() ? "no status" : status,
                                 std::isfinite(age_seconds)
                                     ? fmt::format("metrics written {} ago", duration_text(std::round(age_seconds)))
                                     : "no metrics yet");
  if (!progress.step) return text + "No step has been logged yet (log.every_steps sets how often that is done).\n";
  const Json& step = *progress.step;
  const double done = number_in(step, "step"), last = number_in(step, "last_step");
  text += fmt::format("step {}", text_of(done, "", 12));
  if (last > 0) {
    const double per_step = number_in(step, "run_seconds") / done;
    text += fmt::format(" of {} {} {:.0f} %", text_of(last, "", 12), bar_text(done / last, 30), 100 * done / last);
    const double left = (last - done) * per_step;
    if (left > 0 && status == "running") text += fmt::format("   remaining: {}", duration_text(std::round(left)));
  }
  text += "\n" + figures_text(step);
  if (progress.evaluation) text += evaluation_text(*progress.evaluation);
  constexpr int kCurve = 8, kFewestRanks = 4;
  const int used = static_cast<int>(std::ranges::count(text, '\n')) + kCurve + 4;
  const std::string curve = curve_text(progress.losses, screen.width, kCurve);
  if (!curve.empty()) text += "\n" + curve;
  const double ranks = number_in(step, "ranks");
  const int room = std::max(kFewestRanks, screen.height - used - 1);
  const std::string table = ranks_text(step, static_cast<std::size_t>(room));
  if (!table.empty()) text += "\n" + table;
  if (ranks > room) text += fmt::format("... {:.0f} more, which wait longer for others\n", ranks - room);
  return text;
}

// ------------------------------------------------------------------------------------------------------- watching

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
    const std::string status = status_of_run(run_);
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
  add_required(*command, "RUN", options->run, "A run directory, such as runs/quickstart");
  command->add_option("--every", options->every_seconds, "Seconds between two updates")
      ->check(CLI::Range(0.1, 3600.0))
      ->capture_default_str();
  command->add_flag("--once", options->once, "Print the state once; the same happens if the output is not a terminal");
  set_run(*command, run, [options] { watch(run_argument(options->run), options->every_seconds, options->once); });
}

}  // namespace lockstep::commands
