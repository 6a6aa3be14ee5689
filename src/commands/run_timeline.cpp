// One step of RUN/trace.json (run/trace_file.h) as a timeline. The file has one event per line and may be hundreds of
// megabytes long, so it is read line by line, twice: first the steps, then what happened in one of them.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <string_view>

#include "base/file.h"
#include "commands/run_record.h"
#include "page/ticks.h"

namespace lockstep::commands {
namespace {

using Json = nlohmann::ordered_json;
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

}  // namespace

std::optional<page::Timeline> read_step_timeline(const std::string& trace, std::string& note) {
  if (!std::filesystem::exists(trace)) {
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

  const page::Unit unit = page::unit_of_seconds((step.end - step.begin) * 1e-6);
  const double unit_us = unit.size * 1e6;
  page::Timeline timeline{
      .title = "Timeline of " + step.name,
      .description = fmt::format(
          "What each thread did in the step with the median duration on rank 0{}.",
          ranks.size() > kMaxRanks ? fmt::format(", on {} of {} ranks", kMaxRanks, ranks.size()) : std::string()),
      .x_label = fmt::format("time since the beginning of the step on rank 0 ({})", unit.name),
      .length = (step.end - step.begin) / unit_us,
      .kinds = {kKinds.begin(), kKinds.end()},
      .rows = {}};
  for (auto& [row, events] : rows)
    timeline.rows.push_back(
        {.name = fmt::format("rank {}, {}", row.first, names[row]), .spans = spans_of(events, step.begin, unit_us)});
  return timeline;
}

}  // namespace lockstep::commands
