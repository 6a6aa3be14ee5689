#include "mlflow/events.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <string_view>
#include <utility>

#include "base/file.h"
#include "base/hash.h"
#include "run/metrics_file.h"

namespace lockstep::mlflow {
namespace {

using Json = nlohmann::ordered_json;
using run::number_in;

constexpr std::uint64_t kTailBytes = 4096;
constexpr double kMegabyte = 1e6;  // as in MLflow's client

class Collector {
 public:
  Collector(double time_unix, double step, std::vector<Metric>& out)
      : time_ms_(std::llround(1e3 * time_unix)), step_(std::llround(step)), out_(out) {}

  void add(std::string key, double value) {
    if (std::isfinite(value)) out_.push_back({std::move(key), value, time_ms_, step_});
  }

  /// Adds a list with one figure per rank. "{}" in `name` stands for the rank.
  void add_ranks(const Json& per_rank, std::string_view key, const std::string& name, double factor = 1) {
    const auto list = per_rank.find(key);
    if (list == per_rank.end() || !list->is_array()) return;
    for (std::size_t rank = 0; rank < list->size(); ++rank)
      if ((*list)[rank].is_number()) add(fmt::format(fmt::runtime(name), rank), factor * (*list)[rank].get<double>());
  }

 private:
  std::int64_t time_ms_, step_;
  std::vector<Metric>& out_;
};

void add_ranks(const Json& per_rank, Collector& out) {
  const auto losses = per_rank.find("loss");
  const std::size_t n_ranks = losses != per_rank.end() && losses->is_array() ? losses->size() : 0;
  if (n_ranks == 0 || n_ranks > run::kMaxRankCurves) return;
  // Ranks on devices also report figures of their host processes. On the CPU, there is only the process.
  const bool has_device = per_rank.contains("host_memory_bytes");
  const std::string system = "system/rank_{}/";
  const char* processes[] = {has_device ? "host_memory_bytes" : "memory_bytes",
                             has_device ? "cpu_utilisation" : "utilisation"};
  out.add_ranks(per_rank, processes[0], system + "system_memory_usage_megabytes", 1 / kMegabyte);
  out.add_ranks(per_rank, processes[1], system + "cpu_utilization_percentage", 100);
  if (has_device) {
    out.add_ranks(per_rank, "memory_bytes", system + "gpu_0_memory_usage_megabytes", 1 / kMegabyte);
    out.add_ranks(per_rank, "utilisation", system + "gpu_0_utilization_percentage", 100);
  }
  if (n_ranks == 1) return;  // the rank's curves are those of the run
  for (const auto& [key, list] : per_rank.items())
    if (key == "loss" || key.ends_with("_per_second") || key == "data_wait_seconds" ||
        key == "exposed_communication_seconds")
      out.add_ranks(per_rank, key, "ranks_" + key + "/{}");
}

}  // namespace

Event event_of(const Json& object) {
  Event out;
  const double time = number_in(object, "time_unix"), step = number_in(object, "step");
  const std::string event = run::text_in(object, "event");
  if (!std::isfinite(time) || !std::isfinite(step) || std::abs(time) > 1e12 || std::abs(step) > 1e15) return out;
  out.time_unix = time;
  Collector collector(time, step, out.metrics);
  const std::string unit = run::unit_of(object);
  for (const auto& [key, value] : object.items()) {
    const std::string group = value.is_number() ? run::curve_group(event, key, unit) : "";
    if (!group.empty()) collector.add(group + key, value.get<double>());
  }
  const auto per_rank = object.find("per_rank");
  if (event == "step" && per_rank != object.end() && per_rank->is_object()) add_ranks(*per_rank, collector);
  return out;
}

EventReader::EventReader(std::string path, Position position) : path_(std::move(path)), position_(std::move(position)) {
  require_regular_file(path_);
  std::error_code error;
  const std::uintmax_t size = std::filesystem::file_size(path_, error);
  size_bytes_ = error ? 0 : size;
  if (position_.bytes == 0) return;
  const std::string before = position_.tail_hash;
  if (position_.bytes <= size_bytes_) set_tail_hash();
  if (position_.bytes > size_bytes_ || position_.tail_hash != before) find_place();
}

void EventReader::find_place() {
  std::uint64_t place = 0;
  run::MetricsReader reader(path_);
  while (reader.next()) {
    const double time = event_of(reader.event()).time_unix;
    if (time > 0 && time <= position_.last_time_unix) place = reader.position();
  }
  position_.bytes = place;
  set_tail_hash();
}

void EventReader::set_tail_hash() {
  std::ifstream in(path_, std::ios::binary);
  std::string tail(std::min(position_.bytes, kTailBytes), '\0');
  in.seekg(static_cast<std::streamoff>(position_.bytes - tail.size()));
  in.read(tail.data(), static_cast<std::streamsize>(tail.size()));
  position_.tail_hash = hash_text(hash_bytes(std::as_bytes(std::span(tail))));
}

void EventReader::read(std::size_t max_metrics, std::vector<Metric>& metrics) {
  if (position_.bytes >= size_bytes_) return;
  const std::uint64_t begin = position_.bytes;
  run::MetricsReader reader(path_, begin);
  while (reader.next()) {
    const Event event = event_of(reader.event());
    if (!metrics.empty() && metrics.size() + event.metrics.size() > max_metrics) break;
    position_.bytes = reader.position();
    position_.last_time_unix = std::max(position_.last_time_unix, event.time_unix);
    metrics.insert(metrics.end(), event.metrics.begin(), event.metrics.end());
  }
  if (position_.bytes != begin) set_tail_hash();
}

}  // namespace lockstep::mlflow
