// The activation functions of the backends, compared with the reference; the reference, compared with finite
// differences.
#include "test/reference/activation.h"

#include <gtest/gtest.h>

#include "lockstep/ops/activation.h"
#include "test/reference/backend.h"
#include "test/support/compare.h"
#include "test/support/device.h"
#include "test/support/finite_difference.h"
#include "test/support/tensor.h"

namespace lockstep::test {
namespace {

constexpr ActivationFunction kFunctions[] = {ActivationFunction::relu, ActivationFunction::gelu,
                                             ActivationFunction::silu};
/// One element; one vector; vectors and a remainder; many elements; enough elements for two threads.
constexpr std::int64_t kSizes[] = {1, 16, 37, 5000, 100003};
constexpr DType kTypes[] = {DType::fp32, DType::bf16, DType::fp16};

struct Outputs {
  std::vector<float> y, dx;
};

Outputs run(Backend& backend, const ActivationDescription& d, const std::vector<float>& x, const std::vector<float>& dy,
            const std::vector<float>& dx_before, GradientMode mode) {
  Device device(backend);
  const auto op = backend.make(d);
  const OpMemory memory = device.op_memory(op->memory_requirements());
  const void* const d_x = device.upload_as(d.dtype, x);
  void* const y = device.garbage_as(d.dtype, x.size());
  op->forward({.x = d_x, .y = y}, memory, device.stream());
  void* const dx =
      mode == GradientMode::overwrite ? device.garbage_as(d.dtype, x.size()) : device.upload_as(d.dtype, dx_before);
  op->backward({.x = d_x, .dy = device.upload_as(d.dtype, dy), .dx = dx, .dx_mode = mode}, memory, device.stream());
  return {device.download_as(d.dtype, y, x.size()), device.download_as(d.dtype, dx, x.size())};
}

double roundoff_of(DType dtype) {
  return dtype == DType::bf16 ? kBf16Roundoff : dtype == DType::fp16 ? kFp16Roundoff : kRoundoff;
}

TEST(Activation, AgreesWithTheReference) {
  reference::ReferenceBackend reference;
  for (const ActivationFunction function : kFunctions)
    for (const std::int64_t n : kSizes)
      for (const DType dtype : kTypes)
        for (const GradientMode mode : {GradientMode::overwrite, GradientMode::accumulate, GradientMode::skip}) {
          std::vector<float> x = random_normal(n, 1);
          for (std::size_t i = 0; i < x.size(); i += 7) x[i] *= 20;  // including the flat ends
          x = rounded_to(dtype, x);
          const std::vector<float> dy = rounded_to(dtype, random_normal(n, 2));
          const std::vector<float> before = rounded_to(dtype, random_normal(n, 3));
          ActivationDescription d{.n_elements = n, .function = function};
          const Outputs expected = run(reference, d, x, dy, before, mode);
          d.dtype = dtype;
          for (auto& [backend_name, backend] : tested_backends()) {
            if (!computes_in(*backend, dtype)) continue;
            SCOPED_TRACE(fmt::format("{}, {}, {} of {}, {}", backend_name, name(function), n, name(dtype), text(mode)));
            const Outputs actual = run(*backend, d, x, dy, before, mode);
            // About ten operations, each with an error relative to |x| or |dy|, then one rounding to the type.
            for (std::size_t i = 0; i < x.size(); ++i) {
              const double of_type = roundoff_of(dtype) + (dtype == DType::fp32 ? 0 : 0x1p-24);
              ASSERT_NEAR(actual.y[i], expected.y[i],
                          of_type * std::abs(expected.y[i]) + 16 * kRoundoff * std::abs(x[i]) + 0x1p-25)
                  << "y of " << x[i];
              const double terms = std::abs(dy[i]) * (1 + std::abs(x[i])) + std::abs(before[i]);
              ASSERT_NEAR(actual.dx[i], expected.dx[i],
                          of_type * std::abs(expected.dx[i]) + 16 * kRoundoff * terms + 0x1p-25)
                  << "dx at " << x[i];
            }
          }
        }
}

/// The exponential must not overflow, and NaN must not disappear.
TEST(Activation, HandlesLargeInputs) {
  const std::vector<float> x = {-1e30f, -1000, -100, -88, 88, 100, 1000, 1e30f, 0, -0.0f, NAN};
  const std::vector<float> dy(x.size(), 1);
  for (const ActivationFunction function : kFunctions)
    for (auto& [backend_name, backend] : tested_backends()) {
      SCOPED_TRACE(fmt::format("{}, {}", backend_name, name(function)));
      const Outputs out = run(*backend, {.n_elements = static_cast<std::int64_t>(x.size()), .function = function}, x,
                              dy, dy, GradientMode::overwrite);
      for (std::size_t i = 0; i + 1 < x.size(); ++i) {
        if (std::abs(x[i]) > 1e20f && function == ActivationFunction::gelu) continue;  // x^3 is infinite
        EXPECT_NEAR(out.y[i], std::max(x[i], 0.0f), 1e-30) << x[i];
        if (x[i] != 0) {
          EXPECT_NEAR(out.dx[i], x[i] > 0 ? 1 : 0, 1e-6) << x[i];
        }
      }
      EXPECT_TRUE(std::isnan(out.y.back()));
    }
}

TEST(Activation, RejectsImpossibleDescriptions) {
  for (auto& [backend_name, backend] : tested_backends()) {
    EXPECT_THROW((void)backend->make(ActivationDescription{.n_elements = 0}), Error) << backend_name;
    EXPECT_THROW((void)backend->make(ActivationDescription{.n_elements = 4, .function = ActivationFunction::none}),
                 Error)
        << backend_name;
    EXPECT_THROW((void)backend->make(ActivationDescription{.n_elements = 4, .dtype = DType::int32}), Error)
        << backend_name;
  }
}

TEST(Activation, AgreesWithFiniteDifferences) {
  for (const ActivationFunction function : kFunctions) {
    std::vector<double> x = to_double(random_normal(20, 1));
    const std::vector<double> dy = to_double(random_normal(20, 2));
    std::vector<double> dx(x.size());
    for (std::size_t i = 0; i < x.size(); ++i) dx[i] = dy[i] * reference::activation_derivative(function, x[i]);
    EXPECT_TRUE(gradient_matches(x, dx, [&] {
      double loss = 0;
      for (std::size_t i = 0; i < x.size(); ++i) loss += dy[i] * reference::activation(function, x[i]);
      return loss;
    })) << name(function);
  }
}

}  // namespace
}  // namespace lockstep::test
