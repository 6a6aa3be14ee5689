// The lines of RUN/metrics.jsonl: how they are read, and which of their figures are curves, under which tag. The run
// may be in progress or have been killed, so the last line may be incomplete. Keys and their units: docs/using.md.
#pragma once

#include <cmath>
#include <cstdint>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace lockstep::run {

/// Runs of more ranks have no curves of each rank: nobody could tell them apart, and they would fill the disk.
inline constexpr std::size_t kMaxRankCurves = 64;

inline std::string metrics_path(const std::string& run) { return run + "/metrics.jsonl"; }

/// Reads complete lines. A line that is still incomplete is left for the next reader.
class MetricsReader {
 public:
  /// Begins at a position between two lines. The file may be missing.
  explicit MetricsReader(const std::string& path, std::uint64_t position = 0);

  bool is_open() const { return is_open_; }
  /// Throws what read_file() throws if the file cannot be opened.
  void require_open() const;
  /// Moves to the next line; false if there is none. Throws system_call if the file cannot be read.
  bool next();
  /// The line, without its line feed, and the object that it contains: an empty one if the line is damaged.
  const std::string& line() const { return line_; }
  nlohmann::ordered_json event() const;
  /// The end of the line.
  std::uint64_t position() const { return position_; }

 private:
  std::string path_;
  std::ifstream in_;
  std::uint64_t position_;
  bool is_open_;
  std::string line_;
};

/// A figure or text of an object; NaN or empty if it is missing or of another type.
template <typename Json>
double number_in(const Json& object, const std::string& key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_number() ? found->template get<double>() : std::nan("");
}
template <typename Json>
std::string text_in(const Json& object, const std::string& key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_string() ? found->template get<std::string>() : "";
}

/// What a step tells about each rank; empty if it does not. A figure that is missing is NaN, and a host is empty.
std::vector<double> of_ranks(const nlohmann::ordered_json& step, const std::string& key);
std::vector<std::string> hosts_of(const nlohmann::ordered_json& step);

/// What an event counts, "samples" for the key samples_per_second; empty if it has no speed.
std::string unit_of(const nlohmann::ordered_json& event);

/// How reports show a figure.
struct Curve {
  std::string_view key{}, title{}, unit{};  // unit: of what is shown; empty: none
  double factor = 1;                        // from the unit of the file to `unit`
  bool is_performance = false;
  /// "accuracy (%)"
  std::string label() const { return std::string(title) + (unit.empty() ? "" : " (" + std::string(unit) + ")"); }
};
/// Of a key that may begin with "validation_" or the like. One that is not known has no title.
Curve curve_of(std::string_view key);

/// The group of a figure among the curves of TensorBoard and MLflow, such as "train/"; empty if it is no curve. `unit`:
/// what the run counts.
std::string curve_group(std::string_view event, std::string_view key, std::string_view unit);

}  // namespace lockstep::run
