#include "tasks/task.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "lockstep/error.h"
#include "tasks/image_classification/task.h"

namespace lockstep::tasks {
namespace {

struct Row {
  const char* family;
  std::unique_ptr<Task> (*make)(const Config& config);
};

constexpr Row kTasks[] = {
    {"resnet", make_image_classification},
};

}  // namespace

std::unique_ptr<Task> make_task(const Config& config) {
  for (const Row& row : kTasks)
    if (config.model.family == row.family) return row.make(config);
  fail(ErrorCode::not_supported, "model.family: there is no task for {}; the known family is resnet",
       config.model.family);
}

std::string Measure::text(double value, int digits) const {
  return fmt::format("{:.{}f}{}", scale * value, digits, unit);
}

double mean(double sum, double count) { return count > 0 ? sum / count : 0; }

const Measure& loss_measure() {
  static const Measure loss{.key = "loss",
                            .unit = "",
                            .scale = 1,
                            .step_digits = 4,
                            .epoch_digits = 3,
                            .result_digits = 4,
                            .greater_is_better = false,
                            .of = [](const LossSums& sums) { return mean(sums.loss, sums.count); }};
  return loss;
}

}  // namespace lockstep::tasks
