// Moving averages of statistics and of weights, compared with the reference.
#include <gtest/gtest.h>

#include <limits>
#include <optional>

#include "lockstep/ops/moving_average.h"
#include "test/reference/backend.h"
#include "test/support/compare.h"
#include "test/support/device.h"
#include "test/support/tensor.h"

namespace lockstep::test {
namespace {

std::vector<float> run(Backend& backend, std::size_t n_elements, std::optional<float> momentum,
                       const std::vector<float>& before, const std::vector<float>& batch,
                       const StepScalars& scalars = {}) {
  MovingAverageDescription d;
  d.n_elements = n_elements;
  d.momentum = momentum;
  Device device(backend);
  const auto op = backend.make(d);
  MovingAverage::Apply args;
  args.running = device.upload(before);
  args.batch = device.upload(batch);
  args.scalars = device.upload(std::vector<StepScalars>{scalars});
  op->apply(args, device.op_memory(op->memory_requirements()), device.stream());
  return device.download(args.running, n_elements);
}

TEST(MovingAverage, AgreesWithTheReference) {
  reference::ReferenceBackend reference;
  for (std::int64_t n_elements : {1, 16, 37, 9600})
    for (float momentum : {0.0f, 0.1f, 1.0f}) {
      const auto n = static_cast<std::size_t>(n_elements);
      const std::vector<float> before = random_normal(n_elements, 1), batch = random_normal(n_elements, 2);
      const std::vector<float> expected = run(reference, n, momentum, before, batch);
      for (auto& [name, backend] : tested_backends())
        // Three roundings of terms that are at most as large as the largest input.
        EXPECT_TRUE(near(run(*backend, n, momentum, before, batch), expected, 4 * kRoundoff))
            << name << ", " << n << " elements, momentum " << momentum;
    }
}

TEST(MovingAverage, KnownValues) {
  for (auto& [name, backend] : tested_backends())
    EXPECT_EQ(run(*backend, 3, 0.25f, {0, 1, -4}, {4, 1, 4}), (std::vector<float>{1, 1, -2})) << name;
}

TEST(MovingAverage, ASkippedStepChangesNothing) {
  reference::ReferenceBackend reference;
  const std::vector<float> before = {0, 1, -4}, batch = {4, std::numeric_limits<float>::quiet_NaN(), 4};
  EXPECT_EQ(run(reference, 3, 0.25f, before, batch, {.is_applied = 0}), before);
  for (auto& [name, backend] : tested_backends())
    EXPECT_EQ(run(*backend, 3, 0.25f, before, batch, {.is_applied = 0}), before) << name;
}

/// For weights, the momentum is that of the step, whether or not the step is applied.
TEST(MovingAverage, OfWeights) {
  reference::ReferenceBackend reference;
  const std::int64_t n_elements = 9601;
  const auto n = static_cast<std::size_t>(n_elements);
  const std::vector<float> before = random_normal(n_elements, 1), weights = random_normal(n_elements, 2);
  for (const std::uint32_t is_applied : {0u, 1u})
    for (const float momentum : {0.25f, 1e-3f}) {
      const StepScalars scalars{.is_applied = is_applied, .average_momentum = momentum};
      const std::vector<float> expected = run(reference, n, {}, before, weights, scalars);
      EXPECT_NE(expected, before);
      for (auto& [name, backend] : tested_backends())
        EXPECT_TRUE(near(run(*backend, n, {}, before, weights, scalars), expected, 4 * kRoundoff)) << name;
    }
}

/// With momentum 1 the result is a copy, bit for bit, although a + (b - a) is not b; with 0 the weights are not even
/// read.
TEST(MovingAverage, OfWeightsIsCopiedOrKept) {
  const std::vector<float> before = {1e8f, std::numeric_limits<float>::quiet_NaN(), -4}, weights = {1e-8f, 1, 3};
  const std::vector<float> finite = {1, 2, 3}, broken(3, std::numeric_limits<float>::quiet_NaN());
  for (auto& [name, backend] : tested_backends()) {
    EXPECT_EQ(run(*backend, 3, {}, before, weights, {.average_momentum = 1}), weights) << name;
    EXPECT_EQ(run(*backend, 3, {}, finite, broken, {.average_momentum = 0}), finite) << name;
  }
}

}  // namespace
}  // namespace lockstep::test
