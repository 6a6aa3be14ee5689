// The text of `lockstep top`: what the files of a run tell about it, laid out for a terminal.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace lockstep::commands {

/// What metrics.jsonl tells. Events are added in the order of the file.
class RunProgress {
 public:
  /// An object that is not an event of a run is ignored.
  void add(nlohmann::ordered_json event);

  const std::optional<nlohmann::ordered_json>& step() const { return step_; }  // the last event of each kind
  const std::optional<nlohmann::ordered_json>& evaluation() const { return evaluation_; }
  /// (step, loss) of every logged step whose loss is finite.
  const std::vector<std::pair<std::int64_t, double>>& losses() const { return losses_; }

 private:
  std::optional<nlohmann::ordered_json> step_, evaluation_;
  std::vector<std::pair<std::int64_t, double>> losses_;
};

struct Screen {
  int width = 80, height = 24;  // in characters; the text may be taller if too few ranks can be left out
};

/// `status`: the content of RUN/status. `age_seconds`: the time since metrics.jsonl was last written.
std::string top_text(const std::string& run, const std::string& status, double age_seconds, const RunProgress& progress,
                     const Screen& screen);

/// The means of the points in each of up to `width` parts of the x axis, drawn in `height` lines with two labels of the
/// y axis. Empty for fewer than two points.
std::string curve_text(const std::vector<std::pair<std::int64_t, double>>& points, int width, int height);

}  // namespace lockstep::commands
