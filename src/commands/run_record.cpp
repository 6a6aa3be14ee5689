#include "commands/run_record.h"

#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <filesystem>
#include <fstream>

#include "base/file.h"
#include "base/printable.h"
#include "config/parser.h"
#include "lockstep/error.h"
#include "run/metrics_file.h"

namespace lockstep::commands {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr std::uint64_t kMaxFileBytes = std::uint64_t{1} << 20;

/// Calls `use(line)` for each complete line, without its line feed. Returns false if the file cannot be opened.
template <typename Use>
bool for_each_line(const std::string& path, Use use) {
  require_regular_file(path);
  std::ifstream in(path, std::ios::binary);
  if (!in) return false;
  for (std::string line; std::getline(in, line) && !in.eof();) use(line);
  return true;
}

void add_ranks(RunRecord& run, const Json& step) {
  const std::vector<double> losses = run::of_ranks(step, "loss"), data = run::of_ranks(step, "data_wait_seconds"),
                            others = run::of_ranks(step, "exposed_communication_seconds"),
                            memory = run::of_ranks(step, "memory_bytes");
  const std::vector<std::string> hosts = run::hosts_of(step);
  const double step_seconds = run::number_in(step, "step_seconds");
  if (losses.empty() || !(step_seconds > 0)) return;
  if (run.ranks.size() != losses.size()) {  // the run was resumed on a different number of ranks
    run.ranks.assign(losses.size(), {});
    run.n_rank_steps = 0;
    run.rank_step_seconds = 0;
  }
  ++run.n_rank_steps;
  run.rank_step_seconds += step_seconds;
  const auto at = [](const std::vector<double>& values, std::size_t rank) {
    return rank < values.size() ? values[rank] : std::nan("");
  };
  for (std::size_t rank = 0; rank < run.ranks.size(); ++rank) {
    RankFigures& figures = run.ranks[rank];
    if (rank < hosts.size() && !hosts[rank].empty()) figures.host = hosts[rank];
    if (std::isfinite(at(data, rank))) figures.data_wait_seconds += data[rank];
    if (std::isfinite(at(others, rank))) figures.exposed_communication_seconds += others[rank];
    figures.memory_bytes = std::fmax(figures.memory_bytes, at(memory, rank));
  }
}

void add_samples(RunRecord& run, const Json& event) {
  const auto list = event.find("samples");
  if (list == event.end() || !list->is_array()) return;
  for (const Json& sample : *list) {
    const std::string prompt = run::text_in(sample, "prompt");
    auto known = std::ranges::find(run.samples, prompt, [](const auto& of_prompt) { return of_prompt.first; });
    if (known == run.samples.end()) known = run.samples.insert(known, {prompt, {}});
    known->second.push_back({.step = event["step"].get<std::int64_t>(), .text = run::text_in(sample, "text")});
  }
}

void read_metrics(RunRecord& run) {
  const std::string path = run::metrics_path(run.path);
  std::size_t n_damaged = 0, n_lines = 0;
  run::MetricsReader reader(path);
  for (; reader.next(); ++n_lines) {
    const Json event = reader.event();
    const std::string kind = run::text_in(event, "event");
    if (!event.contains("event") || !event["event"].is_string() || !std::isfinite(run::number_in(event, "step"))) {
      ++n_damaged;
      continue;
    }
    const double time = run::number_in(event, "time_unix");
    run.first_time_unix = std::fmin(run.first_time_unix, time);
    run.last_time_unix = std::fmax(run.last_time_unix, time);
    if (kind == "step") {
      run.steps.add(event);
      add_ranks(run, event);
    } else if (kind == "evaluation") {
      run.evaluations.add(event);
    } else if (kind == "epoch") {
      run.epochs.add(event);
    } else if (kind == "samples") {
      add_samples(run, event);
    }
  }
  constexpr const char* kRemedy =
      "write the report when the run has logged a step (log.every_steps), or resume the run";
  require(reader.is_open(), ErrorCode::usage, "{} does not exist or cannot be read: {}", path, kRemedy);
  require(n_lines > 0, ErrorCode::usage, "{} has no complete line: {}", path, kRemedy);
  require(run.steps.size() + run.evaluations.size() + run.epochs.size() > 0, ErrorCode::usage,
          "none of the {} lines of {} is an event of a step, an epoch or an evaluation: {}", n_lines, path, kRemedy);
  if (n_damaged > 0)
    run.notes.push_back(fmt::format("{}: {} of {} lines {} damaged and left out.", path, n_damaged, n_lines,
                                    n_damaged == 1 ? "is" : "are"));
}

/// Reads metrics.json, which is written at the end of each start of the run.
void read_summary(RunRecord& run) {
  const std::string path = run.path + "/metrics.json";
  if (!fs::exists(path)) return;
  const Json object = Json::parse(read_file(path, kMaxFileBytes), nullptr, /*allow_exceptions=*/false);
  if (object.is_object())
    run.summary = object;
  else
    run.notes.push_back(fmt::format("{} is damaged: the versions of libraries are missing.", path));
}

/// The text after "2026-11-23 23:32:31 | ", or the whole line.
std::string message_of(const std::string& line) {
  constexpr std::size_t kTime = 19;
  const bool has_time = line.size() > kTime + 3 && line[4] == '-' && line.compare(kTime, 3, " | ") == 0;
  return has_time ? line.substr(kTime + 3) : line;
}

void read_log(RunRecord& run) {
  constexpr std::size_t kLastLines = 12, kLongest = 400;
  constexpr const char* kOfMachine[] = {"device", "data", "model", "batch", "communication"};
  std::deque<std::string> last;
  for_each_line(run.path + "/log.txt", [&](const std::string& line) {
    last.push_back(printable(line, kLongest));
    if (last.size() > kLastLines) last.pop_front();
    std::string message = message_of(line);
    if (message.starts_with("Lockstep ") && message.find(" rank") != std::string::npos) {
      ++run.n_starts;
      run.machine.clear();
      run.machine.emplace_back("program", message.substr(0, message.find(": ")));
      return;
    }
    message.erase(0, message.find_first_not_of(' '));
    const auto colon = message.find(": ");
    if (colon == std::string::npos) return;
    const std::string what = message.substr(0, colon);
    const bool is_rank = what.starts_with("rank ") && message.find(" | ") != std::string::npos;
    const bool is_known = std::ranges::find(kOfMachine, what) != std::ranges::end(kOfMachine);
    const bool is_new =
        std::ranges::find(run.machine, what, &std::pair<std::string, std::string>::first) == run.machine.end();
    if (!run.machine.empty() && (is_rank || is_known) && is_new)
      run.machine.emplace_back(what, printable(message.substr(colon + 2), kLongest));
  });
  for (const std::string& line : last) run.log_end += line + "\n";
}

}  // namespace

void EventTable::add(const Json& event) {
  for (const auto& [key, value] : event.items()) {
    if (!value.is_number()) continue;
    std::vector<double>& column = columns_[key];
    column.resize(size_, std::nan(""));
    column.push_back(value.get<double>());
  }
  ++size_;
}

std::vector<std::string> EventTable::keys() const {
  std::vector<std::string> keys;
  for (const auto& [key, column] : columns_) keys.push_back(key);
  return keys;
}

bool EventTable::has(const std::string& key) const { return std::isfinite(last(key)); }

std::vector<double> EventTable::column(const std::string& key) const {
  const auto found = columns_.find(key);
  std::vector<double> values = found == columns_.end() ? std::vector<double>() : found->second;
  values.resize(size_, std::nan(""));
  return values;
}

double EventTable::last(const std::string& key) const {
  const auto found = columns_.find(key);
  if (found == columns_.end()) return std::nan("");
  const auto value =
      std::find_if(found->second.rbegin(), found->second.rend(), [](double v) { return std::isfinite(v); });
  return value == found->second.rend() ? std::nan("") : *value;
}

std::string EventTable::key_with_end(const std::string& end) const {
  const auto found = std::ranges::find_if(columns_, [&](const auto& column) { return column.first.ends_with(end); });
  return found == columns_.end() ? "" : found->first;
}

RunRecord read_run_record(std::string path) {
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  const std::string broken = broken_link_text(path);
  require(fs::is_directory(path), ErrorCode::usage,
          "there is no run {}: expected a run directory, such as runs/quickstart{}", path,
          broken.empty() ? "" : fmt::format("; {}", broken));
  const std::string configuration = path + "/config.yaml";
  require(fs::exists(configuration), ErrorCode::usage,
          "{} is not a run directory: it has no config.yaml, which a run writes when it starts", path);
  RunRecord run{.path = path,
                .config = config::parse({configuration}),
                .status = "",
                .steps = {},
                .evaluations = {},
                .epochs = {},
                .samples = {},
                .ranks = {},
                .machine = {},
                .log_end = "",
                .timeline = {},
                .timeline_note = "",
                .notes = {}};
  read_metrics(run);
  read_summary(run);
  if (const std::string file = path + "/status"; fs::exists(file)) {
    const std::string text = read_file(file, kMaxFileBytes);
    run.status = text.substr(0, text.find('\n'));
  }
  read_log(run);
  run.timeline = read_step_timeline(path + "/trace.json", run.timeline_note);
  return run;
}

}  // namespace lockstep::commands
