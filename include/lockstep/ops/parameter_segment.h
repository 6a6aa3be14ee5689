// A parameter's place in the arenas of parameters, gradients and optimizer state. Ops over whole arenas take a list of
// these and do all of them in one launch.
#pragma once

#include <cstddef>
#include <optional>

namespace lockstep {

struct ParameterSegment {
  std::size_t begin = 0;  // elements
  std::size_t n_elements = 0;
  bool decay = true;                    // weight decay applies, and the trust ratio of LARS
  float learning_rate_factor = 1;       // the learning rate of the step is multiplied by it
  std::optional<float> weight_decay{};  // where `decay`; none: the optimizer's
};

}  // namespace lockstep
