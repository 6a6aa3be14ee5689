// CPU backends whose ops use a given algorithm.
#pragma once

#include <memory>
#include <string>

#include "lockstep/algorithms.h"
#include "lockstep/backend.h"

namespace lockstep::test {

/// The choices that are made, by timing, when `d` is planned. They depend on the number of threads.
template <typename Description>
Algorithms::Choices choices_of(const Description& d, int threads) {
  const auto collected = std::make_shared<Algorithms>();
  collected->enable_timing();
  (void)make_backend({.device = "cpu", .threads = threads, .algorithms = collected})->make(d);
  return collected->choices();
}

/// Uses `algorithm` in place of each of `choices`. Where it does not fit, the first one is used.
inline std::unique_ptr<Backend> backend_with(const std::string& algorithm, Algorithms::Choices choices, int threads) {
  for (auto& [key, name] : choices) name = algorithm;
  return make_backend({.device = "cpu", .threads = threads, .algorithms = std::make_shared<Algorithms>(choices)});
}

}  // namespace lockstep::test
