// Converts lines of metrics.jsonl to MLflow metrics. Curves have the names that TensorBoard shows (train/loss,
// validation/accuracy, performance/step_seconds), and the resource usage of ranks has MLflow's names of system metrics,
// with the rank in place of the node: system/rank_0/gpu_0_utilization_percentage.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "mlflow/server.h"

namespace lockstep::mlflow {

struct Event {
  double time_unix = 0;
  std::vector<Metric> metrics{};  // none: a checkpoint, or a line that is damaged
};
/// `object`: of a line.
Event event_of(const nlohmann::ordered_json& object);

/// How far metrics.jsonl was sent. A resumed run replaces the file by one without the lines after the resumed step, in
/// which a position no longer means the same; so the end of what was sent is recognised by its hash.
struct Position {
  std::uint64_t bytes = 0;
  std::string tail_hash{};    // of the last bytes before the position
  double last_time_unix = 0;  // of the events that were sent
};

/// Reads the lines that have not been sent. The file may be missing, and may end in the middle of a line.
class EventReader {
 public:
  /// If the file was replaced, the position is moved to the end of the last event that is not newer than those that
  /// were sent.
  EventReader(std::string path, Position position);

  /// Appends the metrics of lines as long as there are fewer than `max_metrics`; a single line may exceed that number.
  void read(std::size_t max_metrics, std::vector<Metric>& metrics);
  /// The end of the lines that were read.
  const Position& position() const { return position_; }
  std::uint64_t size_bytes() const { return size_bytes_; }

 private:
  void find_place();
  void set_tail_hash();

  std::string path_;
  Position position_;
  std::uint64_t size_bytes_ = 0;
};

}  // namespace lockstep::mlflow
