// Running statistics of the cpu backend against the reference.
#include <gtest/gtest.h>

#include <limits>

#include "lockstep/ops/moving_average.h"
#include "test/reference/backend.h"
#include "test/support/compare.h"
#include "test/support/device.h"
#include "test/support/tensor.h"

namespace lockstep::test {
namespace {

std::vector<float> run(Backend& backend, std::size_t n_elements, float momentum, const std::vector<float>& before,
                       const std::vector<float>& batch, std::uint32_t is_applied = 1) {
  MovingAverageDescription d;
  d.n_elements = n_elements;
  d.momentum = momentum;
  Device device(backend);
  const auto op = backend.make(d);
  MovingAverage::Apply args;
  args.running = device.upload(before);
  args.batch = device.upload(batch);
  args.scalars = device.upload(std::vector<StepScalars>{{.is_applied = is_applied}});
  op->apply(args, device.op_memory(op->needs()), device.stream());
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
        // Three roundings, of terms as large as the greatest of the inputs.
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
  EXPECT_EQ(run(reference, 3, 0.25f, before, batch, 0), before);
  for (auto& [name, backend] : tested_backends()) EXPECT_EQ(run(*backend, 3, 0.25f, before, batch, 0), before) << name;
}

}  // namespace
}  // namespace lockstep::test
