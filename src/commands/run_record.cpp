#include "commands/run_record.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <deque>
#include <filesystem>
#include <fstream>
#include <set>
#include <string_view>

#include "base/file.h"
#include "base/numbers.h"
#include "base/printable.h"
#include "commands/model_argument.h"
#include "config/parser.h"
#include "lockstep/error.h"
#include "page/ticks.h"
#include "run/metrics_file.h"

namespace lockstep::commands {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr std::uint64_t kMaxFileBytes = std::uint64_t{1} << 20;

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
      if (std::string unit = run::unit_of(event); !unit.empty()) run.unit = std::move(unit);
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
  const std::string path = run.path + "/log.txt";
  require_regular_file(path);
  std::ifstream in(path, std::ios::binary);
  for (std::string line; std::getline(in, line) && !in.eof();) {  // complete lines
    last.push_back(printable(line, kLongest));
    if (last.size() > kLastLines) last.pop_front();
    std::string message = message_of(line);
    if (message.starts_with("Lockstep ") && message.find(" rank") != std::string::npos) {
      ++run.n_starts;
      run.machine.clear();
      run.machine.emplace_back("program", message.substr(0, message.find(": ")));
      continue;
    }
    message.erase(0, message.find_first_not_of(' '));
    const auto colon = message.find(": ");
    if (colon == std::string::npos) continue;
    const std::string what = message.substr(0, colon);
    const bool is_rank = what.starts_with("rank ") && message.find(" | ") != std::string::npos;
    const bool is_known = std::ranges::find(kOfMachine, what) != std::ranges::end(kOfMachine);
    const bool is_new =
        std::ranges::find(run.machine, what, &std::pair<std::string, std::string>::first) == run.machine.end();
    if (!run.machine.empty() && (is_rank || is_known) && is_new)
      run.machine.emplace_back(what, printable(message.substr(colon + 2), kLongest));
  }
  for (const std::string& line : last) run.log_end += line + "\n";
}

// One step of RUN/trace.json (run/trace_file.h) as a timeline. The file has one event per line and may be hundreds of
// megabytes long, so it is read line by line, twice: first the steps, then what happened in one of them.

using RowId = std::pair<int, int>;  // rank, thread

constexpr int kMaxRanks = 4;
constexpr std::array<const char*, 8> kKinds{"forward", "backward",   "update",     "wait",
                                            "read",    "all-reduce", "evaluation", "checkpoint"};

struct TraceEvent {
  std::string name, category;
  RowId row;
  double begin = 0, end = 0;  // microseconds
};

/// Calls `use` for each span, and `use_name` for the name of each row. Returns false if a line is not an event.
template <typename Use, typename UseName>
bool for_each_event(const std::string& path, Use use, UseName use_name) {
  require_regular_file(path);
  std::ifstream in(path, std::ios::binary);
  for (std::string line; std::getline(in, line);) {
    if (!line.starts_with("{\"name\":")) continue;
    if (line.ends_with(',')) line.pop_back();
    const Json event = Json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (!event.is_object()) return false;
    try {
      const RowId row{event.value("pid", 0), event.value("tid", 0)};
      if (event.value("ph", "") == "X") {
        const double begin = event.at("ts").get<double>();
        use(TraceEvent{event.at("name").get<std::string>(), event.value("cat", ""), row, begin,
                       begin + event.at("dur").get<double>()});
      } else if (event.at("name") == "thread_name") {
        use_name(row, event.at("args").at("name").get<std::string>());
      }
    } catch (const Json::exception&) {
      return false;
    }
  }
  return true;
}

/// The step of rank 0 with the median duration. The first two steps are left out if there are enough others.
TraceEvent median_of(std::vector<TraceEvent> steps) {
  if (steps.size() > 3) steps.erase(steps.begin(), steps.begin() + 2);
  const auto middle = steps.begin() + static_cast<std::ptrdiff_t>((steps.size() - 1) / 2);
  std::ranges::nth_element(steps, middle, {}, [](const TraceEvent& step) { return step.end - step.begin; });
  return *middle;
}

std::vector<page::Span> spans_of(std::vector<TraceEvent>& events, double zero, double unit) {
  std::ranges::stable_sort(events, [](const TraceEvent& a, const TraceEvent& b) {
    return a.begin < b.begin || (a.begin == b.begin && a.end > b.end);
  });
  std::vector<page::Span> spans;
  std::vector<double> open_until;
  for (const TraceEvent& event : events) {
    constexpr double kRounding = 1e-6;
    while (!open_until.empty() && open_until.back() <= event.begin + kRounding) open_until.pop_back();
    const auto kind = std::ranges::find(kKinds, event.category) - kKinds.begin();
    spans.push_back({.begin = (event.begin - zero) / unit,
                     .end = (event.end - zero) / unit,
                     .depth = static_cast<int>(open_until.size()),
                     .kind = static_cast<std::size_t>(kind),
                     .name = event.name});
    open_until.push_back(event.end);
  }
  return spans;
}

/// One step of all ranks: the one with the median duration on rank 0, without the first two, which warm up. At most
/// four ranks are drawn. Empty if the file has no steps or cannot be read; `note` says why.
std::optional<page::Timeline> read_step_timeline(const std::string& trace, std::string& note) {
  if (!fs::exists(trace)) {
    note =
        "This run has no trace.json. With trace=true, a run writes it when it ends, and this page then shows what all "
        "threads did in one step.";
    return std::nullopt;
  }
  std::vector<TraceEvent> steps;
  std::map<RowId, std::string> names;
  std::set<int> ranks;
  const bool is_whole = for_each_event(
      trace,
      [&](const TraceEvent& event) {
        ranks.insert(event.row.first);
        if (event.category == "step" && event.row.first == 0) steps.push_back(event);
      },
      [&](const RowId& row, const std::string& name) { names[row] = name; });
  if (!is_whole || steps.empty()) {
    note = fmt::format("{} {}; train some steps with trace=true to get another one.", trace,
                       is_whole ? "has no steps" : "is damaged");
    return std::nullopt;
  }
  const TraceEvent step = median_of(std::move(steps));
  std::map<RowId, std::vector<TraceEvent>> rows;
  for_each_event(
      trace,
      [&](const TraceEvent& event) {
        const bool is_known = std::ranges::find(kKinds, event.category) != kKinds.end();
        if (is_known && event.row.first < kMaxRanks && event.begin < step.end && event.end > step.begin)
          rows[event.row].push_back(event);
      },
      [](const RowId&, const std::string&) {});

  const Unit unit = unit_of_seconds((step.end - step.begin) * 1e-6);
  const double unit_us = unit.size * 1e6;
  page::Timeline timeline{
      .title = "Timeline of " + step.name,
      .description = fmt::format(
          "What each thread did in the step with the median duration on rank 0{}.",
          ranks.size() > kMaxRanks ? fmt::format(", on {} of {} ranks", kMaxRanks, ranks.size()) : std::string()),
      .x_label = fmt::format("time since the beginning of the step on rank 0 ({})", unit.name),
      .length = (step.end - step.begin) / unit_us,
      .kinds = {kKinds.begin(), kKinds.end()}};
  for (auto& [row, events] : rows)
    timeline.rows.push_back(
        {.name = fmt::format("rank {}, {}", row.first, names[row]), .spans = spans_of(events, step.begin, unit_us)});
  return timeline;
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

RunRecord read_run_record(const std::string& path) {
  RunRecord run;
  run.path = path;
  run.config = config::parse({path + "/config.yaml"});
  read_metrics(run);
  read_summary(run);
  run.status = status_of_run(path);
  read_log(run);
  run.timeline = read_step_timeline(path + "/trace.json", run.timeline_note);
  return run;
}

}  // namespace lockstep::commands
