// Gated linear units of the backends, compared with the reference; the reference, compared with finite differences.
#include "test/reference/glu.h"

#include <gtest/gtest.h>

#include "test/reference/backend.h"
#include "test/support/compare.h"
#include "test/support/device.h"
#include "test/support/finite_difference.h"
#include "test/support/tensor.h"

namespace lockstep::test {
namespace {

struct Case {
  std::int64_t rows, width;
};
/// One element; one vector; vectors and a remainder; many rows; wide rows; enough for two threads.
const Case kCases[] = {{1, 1}, {2, 16}, {3, 37}, {77, 8}, {5, 1536}, {3, 2057}, {70, 1000}};
constexpr DType kTypes[] = {DType::fp32, DType::bf16, DType::fp16};

struct Inputs {
  Inputs(const Case& c, DType dtype)
      : x(random_normal(2 * c.rows * c.width, 1)),
        dy(rounded_to(dtype, random_normal(c.rows * c.width, 2))),
        dx_before(rounded_to(dtype, random_normal(2 * c.rows * c.width, 3))) {
    for (std::size_t i = 0; i < x.size(); i += 7) x[i] *= 20;  // including the flat ends of silu
    x = rounded_to(dtype, x);
  }
  std::vector<float> x, dy, dx_before;
};

struct Outputs {
  std::vector<float> y, dx;
};

Outputs run(Backend& backend, const GluDescription& d, const Inputs& in, GradientMode mode) {
  Device device(backend);
  const auto op = backend.make(d);
  const OpMemory memory = device.op_memory(op->memory_requirements());
  const void* const x = device.upload_as(d.dtype, in.x);
  void* const y = device.garbage_as(d.dtype, in.dy.size());
  op->forward({.x = x, .y = y}, memory, device.stream());
  void* const dx = mode == GradientMode::overwrite ? device.garbage_as(d.dtype, in.x.size())
                                                   : device.upload_as(d.dtype, in.dx_before);
  op->backward({.x = x, .dy = device.upload_as(d.dtype, in.dy), .dx = dx, .dx_mode = mode}, memory, device.stream());
  return {device.download_as(d.dtype, y, in.dy.size()), device.download_as(d.dtype, dx, in.x.size())};
}

double roundoff_of(DType dtype) {
  return dtype == DType::bf16 ? kBf16Roundoff : dtype == DType::fp16 ? kFp16Roundoff : kRoundoff;
}

class GluOf : public testing::TestWithParam<ActivationFunction> {};

TEST_P(GluOf, AgreesWithTheReference) {
  reference::ReferenceBackend reference;
  for (const Case& c : kCases)
    for (const DType dtype : kTypes)
      for (const GradientMode mode : {GradientMode::overwrite, GradientMode::accumulate, GradientMode::skip}) {
        const Inputs in(c, dtype);
        GluDescription d{.rows = c.rows, .width = c.width, .function = GetParam()};
        const Outputs expected = run(reference, d, in, mode);
        d.dtype = dtype;
        for (auto& [name, backend] : tested_backends()) {
          if (!computes_in(*backend, dtype)) continue;
          SCOPED_TRACE(fmt::format("{}, {} x {}, {}, {}", name, c.rows, c.width, lockstep::name(dtype), text(mode)));
          const Outputs actual = run(*backend, d, in, mode);
          // About ten operations, each with an error relative to the largest factors, then one rounding to the type;
          // the smallest fp16 numbers are 2^-24 apart.
          const double of_type = roundoff_of(dtype);
          for (std::int64_t row = 0; row < c.rows; ++row)
            for (std::int64_t k = 0; k < c.width; ++k) {
              const auto of_gate = static_cast<std::size_t>(2 * row * c.width + k);
              const std::size_t of_up = of_gate + static_cast<std::size_t>(c.width);
              const auto i = static_cast<std::size_t>(row * c.width + k);
              const double gate = std::abs(in.x[of_gate]), up = std::abs(in.x[of_up]), dy = std::abs(in.dy[i]);
              const auto bound = [&](double result, double terms) {
                return of_type * std::abs(result) + 16 * kRoundoff * terms + 0x1p-25;
              };
              ASSERT_NEAR(actual.y[i], expected.y[i], bound(expected.y[i], gate * up)) << "y of " << gate;
              ASSERT_NEAR(actual.dx[of_gate], expected.dx[of_gate],
                          bound(expected.dx[of_gate], dy * up * (1 + gate) + std::abs(in.dx_before[of_gate])))
                  << "dgate at " << gate;
              ASSERT_NEAR(actual.dx[of_up], expected.dx[of_up],
                          bound(expected.dx[of_up], dy * gate + std::abs(in.dx_before[of_up])))
                  << "dup at " << gate;
            }
        }
      }
}

/// The gradient may replace x.
TEST(Glu, InPlace) {
  const Case c{3, 37};
  for (const DType dtype : kTypes)
    for (auto& [name, backend] : tested_backends()) {
      if (!computes_in(*backend, dtype)) continue;
      const Inputs in(c, dtype);
      const GluDescription d{.rows = c.rows, .width = c.width, .dtype = dtype};
      const Outputs expected = run(*backend, d, in, GradientMode::overwrite);
      Device device(*backend);
      const auto op = backend->make(d);
      void* const x = device.upload_as(dtype, in.x);
      op->backward({.x = x, .dy = device.upload_as(dtype, in.dy), .dx = x}, {}, device.stream());
      EXPECT_EQ(device.download_as(dtype, x, in.x.size()), expected.dx) << name;
    }
}

/// The exponential must not overflow, and NaN must not disappear.
TEST(Glu, HandlesLargeGates) {
  const std::vector<float> gates = {-1e30f, -1000, -100, -88, 88, 100, 1000, 1e30f, NAN};
  const auto width = static_cast<std::int64_t>(gates.size());
  Inputs in({1, width}, DType::fp32);
  in.x = gates;
  in.x.resize(2 * gates.size(), 2.0f);
  in.dy.assign(gates.size(), 1.0f);
  for (auto& [name, backend] : tested_backends()) {
    const Outputs out = run(*backend, {.rows = 1, .width = width}, in, GradientMode::overwrite);
    for (std::size_t i = 0; i + 1 < gates.size(); ++i) {
      EXPECT_NEAR(out.y[i], 2 * std::max(gates[i], 0.0f), 1e-30) << name << ", " << gates[i];
      EXPECT_NEAR(out.dx[i], gates[i] > 0 ? 2 : 0, 1e-6) << name << ", " << gates[i];
    }
    EXPECT_TRUE(std::isnan(out.y.back())) << name;
  }
}

TEST(Glu, RejectsImpossibleDescriptions) {
  for (auto& [name, backend] : tested_backends()) {
    EXPECT_THROW((void)backend->make(GluDescription{.rows = 0, .width = 4}), Error) << name;
    EXPECT_THROW((void)backend->make(GluDescription{.rows = 4, .width = 0}), Error) << name;
    EXPECT_THROW((void)backend->make(GluDescription{.rows = 4, .width = 4, .function = ActivationFunction::none}),
                 Error)
        << name;
    EXPECT_THROW((void)backend->make(GluDescription{.rows = 4, .width = 4, .dtype = DType::int32}), Error) << name;
  }
}

TEST_P(GluOf, AgreesWithFiniteDifferences) {
  const Case c{3, 37};
  const GluDescription d{.rows = c.rows, .width = c.width, .function = GetParam()};
  std::vector<double> x = to_double(random_normal(2 * c.rows * c.width, 1));
  const std::vector<double> dy = to_double(random_normal(c.rows * c.width, 2));
  std::vector<double> y(dy.size()), dx(x.size());
  reference::glu_backward(d, x.data(), dy.data(), dx.data(), GradientMode::overwrite);
  EXPECT_TRUE(gradient_matches(x, dx, [&] {
    reference::glu_forward(d, x.data(), y.data());
    return dot(dy, y);
  }));
}

INSTANTIATE_TEST_SUITE_P(Functions, GluOf,
                         testing::Values(ActivationFunction::silu, ActivationFunction::gelu, ActivationFunction::relu),
                         [](const auto& info) { return std::string(name(info.param)); });

}  // namespace
}  // namespace lockstep::test
