// sanitizers: -*Pool2dGradient.*
// Pooling of each backend, compared with the reference, over shapes x normalisations x modes x layouts x threads; the
// reference, compared with finite differences.
#include <gtest/gtest.h>

#include <cmath>
#include <tuple>

#include "lockstep/ops/pool2d.h"
#include "test/reference/backend.h"
#include "test/support/device.h"
#include "test/support/double_unit.h"
#include "test/support/tensor.h"
#include "test/support/unit.h"

namespace lockstep::test {
namespace {

constexpr auto kMax = Pool2dDescription::Kind::max;
constexpr auto kAverage = Pool2dDescription::Kind::average;

struct Case {
  Pool2dDescription::Kind kind;
  Shape x;  // (N, H, W, C)
  int kernel_size, stride, padding;
};

const Case kCases[] = {
    {kMax, {2, 8, 8, 16}, 3, 2, 1},  // the ImageNet stem's
    {kMax, {1, 7, 9, 3}, 3, 2, 1},   // odd sizes, three channels
    {kMax, {3, 4, 6, 32}, 2, 2, 0},
    {kMax, {1, 5, 5, 19}, 3, 1, 1},      // overlapping windows; channels that do not fill vectors
    {kMax, {1, 1, 1, 16}, 3, 2, 1},      // one pixel
    {kAverage, {2, 4, 4, 64}, 0, 1, 0},  // global
    {kAverage, {1, 3, 5, 13}, 0, 1, 0},
    {kAverage, {5, 1, 1, 48}, 0, 1, 0},
    {kAverage, {2, 7, 7, 16}, 3, 2, 1},  // fewer real elements at the border
    {kAverage, {1, 6, 4, 5}, 2, 2, 0},
};

Pool2dDescription describe(const Case& c, const std::optional<InputNormalization>& normalization) {
  Pool2dDescription d;
  d.kind = c.kind;
  d.x = c.x;
  d.kernel_size = c.kernel_size;
  d.stride = c.stride;
  d.padding = c.padding;
  d.normalization = normalization;
  return d;
}

class Pool2dTest : public testing::TestWithParam<std::tuple<int, int>> {};

TEST_P(Pool2dTest, AgreesWithTheReference) {
  const auto [case_number, normalization_number] = GetParam();
  const Pool2dDescription d =
      describe(kCases[case_number], all_normalizations()[static_cast<std::size_t>(normalization_number)]);
  reference::ReferenceBackend reference;
  const UnitInputs inputs = make_inputs(d, static_cast<std::uint32_t>(case_number * 20 + normalization_number));
  for (UnitModes mode : all_modes()) {
    if (mode.dweight != GradientMode::overwrite) continue;                            // there are no weights,
    if (d.normalization ? mode.dx != GradientMode::overwrite : mode.added) continue;  // and dz is always written
    mode.added_dy = case_number % 2 == 0 ? mode.dx != GradientMode::accumulate : mode.added;
    const UnitOutputs expected = run(reference, d, inputs, mode);
    const UnitOutputs magnitude = magnitudes(d, inputs, mode);
    for (auto& [name, backend] : tested_backends())
      for (Layout x_layout : {Layout::nhwc, Layout::nchw16c})
        for (Layout y_layout : {Layout::nhwc, Layout::nchw16c}) {
          if (!fits(d.x, x_layout) || !fits(d.y(), y_layout)) continue;
          if (!computes_in(*backend, x_layout) || !computes_in(*backend, y_layout)) continue;
          SCOPED_TRACE(std::string(name) + ", " + text(x_layout) + " to " + text(y_layout) + ", x " + d.x.text() +
                       ", kernel size " + std::to_string(d.kernel_size) + ", " + text(d.normalization) + ", " +
                       text(mode));
          Pool2dDescription planned = d;
          planned.x_layout = x_layout;
          planned.y_layout = y_layout;
          expect_within_rounding(run(*backend, planned, inputs, mode), expected, magnitude, lengths(d));
        }
  }
}

INSTANTIATE_TEST_SUITE_P(All, Pool2dTest,
                         testing::Combine(testing::Range(0, static_cast<int>(std::size(kCases))),
                                          testing::Range(0, 13, normalization_step())));

/// With 16 bits, with a result in the same type and, as before the head, in fp32. If z is stored, its rounding produces
/// ties, which change the position of a maximum, so these cases use the average.
TEST_P(Pool2dTest, AgreesWithTheReferenceIn16Bits) {
  const auto [case_number, normalization_number] = GetParam();
  const Pool2dDescription d =
      describe(kCases[case_number], all_normalizations()[static_cast<std::size_t>(normalization_number)]);
  if (d.kind == kMax && d.normalization && d.normalization->store) return;
  reference::ReferenceBackend reference;
  for (const DType dtype : {DType::bf16, DType::fp16}) {
    const UnitInputs inputs =
        rounded_to(dtype, make_inputs(d, static_cast<std::uint32_t>(case_number * 20 + normalization_number + 300)));
    for (const UnitModes& mode : {UnitModes{.added = d.normalization.has_value()},
                                  UnitModes{.dx = GradientMode::accumulate}, UnitModes{.added_dy = true}}) {
      if (d.normalization && mode.dx != GradientMode::overwrite) continue;  // dz is always written
      const UnitOutputs expected = run(reference, d, inputs, mode), magnitude = magnitudes(d, inputs, mode);
      for (auto& [name, backend] : tested_backends())
        for (const DType y_dtype : {dtype, DType::fp32}) {
          if (!computes_in(*backend, dtype)) continue;
          SCOPED_TRACE(std::string(name) + ", x " + d.x.text() + ", kernel size " + std::to_string(d.kernel_size) +
                       ", " + text(d.normalization) + ", " + std::string(lockstep::name(dtype)) + " to " +
                       std::string(lockstep::name(y_dtype)));
          Pool2dDescription planned = d;
          planned.dtype = dtype;
          planned.y_dtype = y_dtype;
          expect_within_rounding(run(*backend, planned, inputs, mode), expected, magnitude, lengths(d), dtype);
        }
    }
  }
}

/// Two gradients of y give the same bits as their sum rounded to the type of y, that is, as a separate pass that adds
/// them first.
TEST(Pool2d, AddsTwoGradientsLikeAPassBefore) {
  for (const Case& c : kCases)
    for (const auto& normalization :
         {std::optional<InputNormalization>{}, std::optional<InputNormalization>{InputNormalization{}}})
      for (const DType dtype : {DType::fp32, DType::bf16, DType::fp16})
        for (const DType y_dtype : {dtype, DType::fp32}) {
          Pool2dDescription d = describe(c, normalization);
          d.dtype = dtype;
          d.y_dtype = y_dtype;
          const UnitInputs two = rounded_to(dtype, make_inputs(d, 904));
          UnitInputs sum = two;
          for (std::size_t i = 0; i < sum.dy.size(); ++i) sum.dy[i] += two.added_dy[i];
          sum.dy = rounded_to(y_dtype, sum.dy);
          for (auto& [name, backend] : tested_backends())
            for (const Layout y_layout : {Layout::nhwc, Layout::nchw16c}) {
              if (!computes_in(*backend, dtype) || !computes_in(*backend, y_layout) || !fits(d.y(), y_layout)) continue;
              SCOPED_TRACE(std::string(name) + ", x " + d.x.text() + ", " + text(normalization) + ", " +
                           std::string(lockstep::name(dtype)) + " to " + std::string(lockstep::name(y_dtype)));
              d.y_layout = y_layout;
              const UnitOutputs actual = run(*backend, d, two, {.added_dy = true});
              const UnitOutputs expected = run(*backend, d, sum, {});
              EXPECT_EQ(actual.dx, expected.dx);
              EXPECT_EQ(actual.sums, expected.sums);
            }
        }
}

TEST(Pool2d, InferenceGivesTheSameOutput) {
  reference::ReferenceBackend reference;
  for (const Case& c : kCases) {
    Pool2dDescription d = describe(c, InputNormalization{InputNormalization::Residual::normalized, true, false});
    d.inference = true;
    const UnitInputs inputs = make_inputs(d, 900);
    const UnitOutputs expected = run(reference, d, inputs, {});
    for (auto& [name, backend] : tested_backends()) {
      SCOPED_TRACE(std::string(name) + ", x " + d.x.text());
      expect_within_rounding(run(*backend, d, inputs, {}), expected, magnitudes(d, inputs, {}), lengths(d));
    }
  }
}

/// Among equal maxima, the first in the window gets the gradient, as in PyTorch: integers from 0 to 3 have many ties.
TEST(Pool2d, TiesGoToTheFirst) {
  reference::ReferenceBackend reference;
  for (const Case& c : kCases) {
    if (c.kind != kMax) continue;
    const Pool2dDescription d = describe(c, std::nullopt);
    UnitInputs inputs = make_inputs(d, 901);
    for (float& x : inputs.x) x = static_cast<float>(static_cast<int>(std::abs(x) * 2) % 4);
    const UnitOutputs expected = run(reference, d, inputs, {});
    for (auto& [name, backend] : tested_backends())
      for (Layout layout : {Layout::nhwc, Layout::nchw16c}) {
        if (!fits(d.x, layout) || !computes_in(*backend, layout)) continue;
        SCOPED_TRACE(std::string(name) + ", " + text(layout) + ", x " + d.x.text());
        Pool2dDescription planned = d;
        planned.x_layout = planned.y_layout = layout;
        expect_within_rounding(run(*backend, planned, inputs, {}), expected, magnitudes(d, inputs, {}), lengths(d));
      }
  }
}

/// Only negative numbers: padding must not win as a zero.
TEST(Pool2d, MaximumIgnoresPadding) {
  const Pool2dDescription d = describe(kCases[0], std::nullopt);
  UnitInputs inputs = make_inputs(d, 902);
  for (float& x : inputs.x) x = -1.0f - std::abs(x);
  for (auto& [name, backend] : tested_backends())
    for (float y : run(*backend, d, inputs, {}).y) EXPECT_LE(y, -1.0f) << name;
}

/// Padding does not count as elements: the average of ones is one everywhere.
TEST(Pool2d, AverageIgnoresPadding) {
  const Pool2dDescription d = describe(kCases[8], std::nullopt);
  UnitInputs inputs = make_inputs(d, 903);
  for (float& x : inputs.x) x = 1.0f;
  for (auto& [name, backend] : tested_backends())
    for (float y : run(*backend, d, inputs, {}).y) EXPECT_NEAR(y, 1.0f, 1e-6f) << name;  // 1/9 is rounded
}

class Pool2dGradient : public testing::TestWithParam<std::tuple<int, int>> {};

TEST_P(Pool2dGradient, AgreesWithFiniteDifferences) {
  const auto [case_number, normalization_number] = GetParam();
  const Pool2dDescription d =
      describe(kCases[case_number], all_normalizations()[static_cast<std::size_t>(normalization_number)]);
  UnitInputs inputs = make_inputs(d, static_cast<std::uint32_t>(500 + case_number * 20 + normalization_number));
  DoubleUnit<Pool2dDescription>(d, inputs).expect_gradients_match();
}

// Stored normalisations only (the even numbers): the loss reads z.
INSTANTIATE_TEST_SUITE_P(All, Pool2dGradient,
                         testing::Combine(testing::Range(0, static_cast<int>(std::size(kCases))),
                                          testing::Values(0, 2, 4, 6, 8, 10, 12)));

}  // namespace
}  // namespace lockstep::test
