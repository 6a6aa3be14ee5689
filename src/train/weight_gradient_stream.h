// cuda.weight_gradient_stream: auto. A second stream for weight gradients (graph/weight_gradient_stream.cpp) is one
// more candidate of autotuning: whole steps are timed with and without it. The choice is stored like those of layers.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "lockstep/algorithms.h"
#include "tasks/task.h"
#include "train/step_plan.h"

namespace lockstep::train {

/// "on" or "off". `plan`: that of the step with the second stream. `seconds`: measures a step with "on" or "off"; a
/// choice for which it throws Error is not available. Without a stored choice the result is "off", unless `algorithms`
/// times unknown choices; if `algorithms` is null, it is "off".
std::string choose_weight_gradient_stream(const StepPlan& plan, Algorithms* algorithms,
                                          const std::function<double(const std::string& value)>& seconds);

/// The time of a training step with one micro-batch of `batch` samples of the train set, on this rank alone, as the
/// training runs it: captured, if the backend captures steps. All its memory is freed again.
double seconds_of_step(const Config& config, const tasks::Task& task, std::int64_t batch, Backend& backend);

}  // namespace lockstep::train
