// sanitizers: -*Conv2dGradient.*
// Convolution of each backend, compared with the reference, over shapes x normalisations x modes x layouts x threads;
// for the cuda backend at each level of fusion; the reference, compared with finite differences.
#include <gtest/gtest.h>

#include <cmath>
#include <tuple>

#include "lockstep/ops/conv2d.h"
#include "test/reference/backend.h"
#include "test/support/conv2d_cases.h"
#include "test/support/device.h"
#include "test/support/double_unit.h"
#include "test/support/tensor.h"
#include "test/support/unit.h"

namespace lockstep::test {
namespace {

const ConvolutionCase kCases[] = {
    {{2, 8, 8, 16}, 32, 3, 1, 1},
    {{1, 7, 5, 3}, 16, 3, 1, 1, true, false},  // the first layer
    {{2, 9, 9, 3}, 16, 7, 2, 3, true, false},  // the ImageNet stem
    {{2, 9, 9, 3}, 64, 7, 2, 3, false, true},  // and with a gradient
    {{1, 1, 1, 16}, 16, 3, 1, 1},              // one pixel: eight of nine taps are in the padding
    {{3, 5, 7, 16}, 16, 3, 2, 1},              // odd sizes, stride 2
    {{2, 6, 6, 32}, 16, 3, 2, 1},              // even sizes, stride 2
    {{2, 7, 7, 32}, 48, 1, 2, 0},              // a shortcut: pixels that no window covers
    {{1, 4, 6, 64}, 32, 1, 1, 0},
    {{2, 5, 5, 13}, 7, 3, 1, 1},                // channels that do not fill vectors
    {{1, 6, 5, 17}, 33, 3, 1, 0, false, true},  // and without padding
    {{2, 4, 4, 5}, 10, 1, 1, 0},
    {{5, 3, 3, 48}, 1, 3, 1, 1},
};

class Conv2dTest : public testing::TestWithParam<std::tuple<int, int>> {};

/// Each case is tested with each normalisation; modes alternate, so that each mode is tested with some case of every
/// kind.
TEST_P(Conv2dTest, AgreesWithTheReference) {
  const auto [case_number, normalization_number] = GetParam();
  const ConvolutionCase& c = kCases[case_number];
  Conv2dDescription d = describe(c, all_normalizations()[static_cast<std::size_t>(normalization_number)]);
  if (d.normalization) d.input_gradient = true;  // gamma and beta need the reductions
  const std::vector<UnitModes> modes = all_modes();
  reference::ReferenceBackend reference;
  const UnitInputs inputs = make_inputs(d, static_cast<std::uint32_t>(case_number * 20 + normalization_number));
  for (int turn = 0; turn < 2; ++turn) {
    const auto number = static_cast<std::size_t>(case_number * 5 + normalization_number * 4 + turn * 13);
    const UnitModes& mode = modes[number % modes.size()];
    const UnitOutputs expected = run(reference, d, inputs, mode);
    const UnitOutputs magnitude = magnitudes(d, inputs, mode);
    for (auto& [name, backend] : tested_backends())
      for (Layout x_layout : {Layout::nhwc, Layout::nchw16c})
        for (Layout y_layout : {Layout::nhwc, Layout::nchw16c}) {
          if (!fits(d.x, x_layout) || !fits(d.y(), y_layout)) continue;
          if (!computes_in(*backend, x_layout) || !computes_in(*backend, y_layout)) continue;
          SCOPED_TRACE(std::string(name) + ", " + text(x_layout) + " to " + text(y_layout) + ", x " + d.x.text() +
                       ", y " + d.y().text() + ", kernel size " + std::to_string(d.kernel_size) + ", " +
                       text(d.normalization) + ", " + text(mode));
          Conv2dDescription planned = d;
          planned.x_layout = x_layout;
          planned.y_layout = y_layout;
          expect_within_rounding(run(*backend, planned, inputs, mode), expected, magnitude, lengths(d));
        }
  }
}

INSTANTIATE_TEST_SUITE_P(All, Conv2dTest,
                         testing::Combine(testing::Range(0, static_cast<int>(std::size(kCases))),
                                          testing::Range(0, 13, normalization_step())));

class Conv2dBf16Test : public testing::TestWithParam<std::tuple<int, int>> {};

TEST_P(Conv2dBf16Test, AgreesWithTheReference) {
  const auto [case_number, normalization_number] = GetParam();
  const ConvolutionCase& c = kBf16Cases[case_number];
  if (c.x[0] > 8 && normalization_number > 1) return;  // the reference is slow
  Conv2dDescription d = describe(c, all_normalizations()[static_cast<std::size_t>(normalization_number)]);
  if (d.normalization) d.input_gradient = true;
  const std::vector<UnitModes> modes = all_modes();
  reference::ReferenceBackend reference;
  const UnitInputs inputs = rounded_to(
      DType::bf16, make_inputs(d, static_cast<std::uint32_t>(case_number * 20 + normalization_number + 400)));
  const UnitModes& mode = modes[static_cast<std::size_t>(case_number * 5 + normalization_number * 4) % modes.size()];
  const UnitOutputs expected = run(reference, d, inputs, mode), magnitude = magnitudes(d, inputs, mode);
  d.dtype = DType::bf16;
  for (auto& [name, backend] : tested_backends()) {
    SCOPED_TRACE(std::string(name) + ", x " + d.x.text() + ", y " + d.y().text() + ", kernel size " +
                 std::to_string(d.kernel_size) + ", " + text(d.normalization) + ", " + text(mode));
    const UnitOutputs actual = run(*backend, d, inputs, mode);
    expect_within_rounding(actual, expected, magnitude, lengths(d), d.dtype);
    if (backend->name() != "cpu") continue;
    const UnitOutputs again = run(*tested_backends()[0].backend, d, inputs, mode);
    EXPECT_EQ(actual.y, again.y) << "the threads do not matter";
  }
}

INSTANTIATE_TEST_SUITE_P(All, Conv2dBf16Test,
                         testing::Combine(testing::Range(0, static_cast<int>(std::size(kBf16Cases))),
                                          testing::Range(0, 13, normalization_step())));

#ifdef LOCKSTEP_CUDA
std::vector<NamedBackend>& fusing_backends() {
  static std::vector<NamedBackend> fusing = [] {
    std::vector<NamedBackend> backends;
    for (const char* level : {"passes", "statistics", "chain"})
      if (is_tested_device("host")) backends.push_back({level, make_cuda_on_host_backend(level)});
    if (!tests_gpu()) return backends;
    BackendOptions options;
    options.device = "cuda";
    backends.push_back({"cuda", make_backend(options)});
    return backends;
  }();
  return fusing;
}

class Conv2dLevelsTest : public testing::TestWithParam<std::tuple<DType, int, int>> {};

TEST_P(Conv2dLevelsTest, AgreeWithTheReference) {
  const auto [dtype, case_number, normalization_number] = GetParam();
  Conv2dDescription d =
      describe(kFp16Cases[case_number], all_normalizations()[static_cast<std::size_t>(normalization_number)]);
  if (d.normalization) d.input_gradient = true;
  reference::ReferenceBackend reference;
  const UnitInputs inputs =
      rounded_to(dtype, make_inputs(d, static_cast<std::uint32_t>(case_number * 20 + normalization_number + 700)));
  const std::vector<UnitModes> modes = all_modes();
  // Each case runs without an added gradient, and with one at its own address and in place, since this selects the
  // graphs.
  for (int turn = 0; turn < 3; ++turn) {
    const UnitModes& mode = modes[static_cast<std::size_t>(3 * ((case_number + normalization_number) % 9) + turn)];
    const UnitOutputs expected = run(reference, d, inputs, mode), magnitude = magnitudes(d, inputs, mode);
    Conv2dDescription planned = d;
    planned.dtype = dtype;
    for (auto& [name, backend] : fusing_backends()) {
      SCOPED_TRACE(std::string(name) + ", x " + d.x.text() + ", y " + d.y().text() + ", kernel size " +
                   std::to_string(d.kernel_size) + ", " + text(d.normalization) + ", " + text(mode));
      expect_within_rounding(run(*backend, planned, inputs, mode), expected, magnitude, lengths(d), dtype);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, Conv2dLevelsTest,
                         testing::Combine(testing::Values(DType::fp16, DType::bf16),
                                          testing::Range(0, static_cast<int>(std::size(kFp16Cases))),
                                          testing::Range(0, 13, normalization_step())));

/// Tests sums in fp32 and weight gradients in the type of x, which are otherwise converted to fp64 and fp32. The sums
/// of separate passes are rounded.
TEST(Conv2dFp16, GivesSumsInFp32AndNarrowWeightGradients) {
  const std::vector<UnitModes> modes = all_modes();
  int n_in_fp32 = 0, n_narrow = 0;
  for (std::size_t i = 0; i < std::size(kFp16Cases); ++i)
    for (std::size_t j = 0; j < all_normalizations().size(); j += normalization_step()) {
      Conv2dDescription d = describe(kFp16Cases[i], all_normalizations()[j]);
      if (d.normalization) d.input_gradient = true;
      const UnitInputs inputs = rounded_to(DType::fp16, make_inputs(d, static_cast<std::uint32_t>(20 * i + j + 1200)));
      d.dtype = DType::fp16;
      UnitModes mode = modes[(i + 4 * j) % modes.size()];
      for (auto& [name, backend] : fusing_backends()) {
        SCOPED_TRACE(std::string(name) + ", x " + d.x.text() + ", " + text(d.normalization) + ", " + text(mode));
        d.fp32_sums = mode.low_precision_dweight = false;
        const UnitOutputs expected = run(*backend, d, inputs, mode);
        d.fp32_sums = mode.low_precision_dweight = true;
        const UnitOutputs actual = run(*backend, d, inputs, mode);
        const auto op = backend->make(d);
        const auto rounded = [](DType dtype, std::vector<double> sums) {
          for (double& sum : sums) sum = dtype == DType::fp32 ? static_cast<float>(sum) : sum;
          return sums;
        };
        EXPECT_EQ(actual.y, expected.y);
        EXPECT_EQ(actual.z, expected.z);
        EXPECT_EQ(actual.dx, expected.dx);
        EXPECT_EQ(actual.dweight, expected.dweight);
        EXPECT_EQ(actual.statistics, rounded(op->statistics_dtype(), expected.statistics));
        EXPECT_EQ(actual.sums, rounded(op->sums_dtype(), expected.sums));
        EXPECT_EQ(actual.residual_sums, rounded(op->sums_dtype(), expected.residual_sums));
        n_in_fp32 += op->statistics_dtype() == DType::fp32 && op->sums_dtype() == DType::fp32;
        n_narrow += op->gives_low_precision_dweight();
      }
    }
  EXPECT_GT(n_in_fp32, 5 / normalization_step());
  EXPECT_GT(n_narrow, 5 / normalization_step());
}

/// Inference returns the same output, although it does not store z.
TEST(Conv2dFp16, InferenceGivesTheSameOutputAtEachLevel) {
  reference::ReferenceBackend reference;
  for (const ConvolutionCase& c : kFp16Cases)
    for (const auto& normalization : all_normalizations()) {
      Conv2dDescription d = describe(c, normalization);
      d.inference = true;
      d.statistics = false;
      const UnitInputs inputs = rounded_to(DType::fp16, make_inputs(d, 950));
      const UnitOutputs expected = run(reference, d, inputs, {}), magnitude = magnitudes(d, inputs, {});
      d.dtype = DType::fp16;
      for (auto& [name, backend] : fusing_backends()) {
        SCOPED_TRACE(std::string(name) + ", x " + d.x.text() + ", " + text(normalization));
        expect_within_rounding(run(*backend, d, inputs, {}), expected, magnitude, lengths(d), DType::fp16);
      }
    }
}

/// Levels are timed once, and the stored choice is used from then on.
TEST(Conv2dFp16, TimesItsLevelsOnce) {
  if (!is_tested_device("host")) GTEST_SKIP() << "it tests the emulated kernels";
  Conv2dDescription d = describe(kFp16Cases[4], InputNormalization{InputNormalization::Residual::plain, true, true});
  d.dtype = DType::fp16;
  const auto timed = std::make_shared<Algorithms>();
  timed->enable_timing();
  make_cuda_on_host_backend("", timed)->make(d);
  ASSERT_EQ(timed->choices().size(), 1u);
  for (const char* level : {"passes", "statistics", "chain"}) {
    Algorithms::Choices choices = timed->choices();
    choices.begin()->second = level;
    const auto known = std::make_shared<Algorithms>(choices);
    const std::string text = make_cuda_on_host_backend("", known)->make(d)->describe();
    EXPECT_NE(text.find(std::string(level) + " (of passes, statistics, chain)"), std::string::npos) << text;
    EXPECT_TRUE(known->is_complete());
  }
}

/// What a level consists of, for each kind of convolution, as `lockstep plan` describes it.
TEST(Conv2dFp16, DescribesWhatIsFused) {
  if (!is_tested_device("host")) GTEST_SKIP() << "it tests the emulated kernels";
  const auto backend = make_cuda_on_host_backend();
  const auto expect_described = [&](const ConvolutionCase& c, const std::optional<InputNormalization>& normalization,
                                    const char* words) {
    Conv2dDescription d = describe(c, normalization);
    d.dtype = DType::fp16;
    const std::string text = backend->make(d)->describe();
    EXPECT_NE(text.find(words), std::string::npos) << text << "\n  should contain: " << words;
  };
  using Residual = InputNormalization::Residual;
  const ConvolutionCase &first = kFp16Cases[0], &stem = kFp16Cases[1], &pointwise = kFp16Cases[4],
                        &window = kFp16Cases[5];
  expect_described(first, std::nullopt, "statistics (of passes, statistics); forward, statistics");
  expect_described(first, std::nullopt, "channels padded to 8");
  expect_described(stem, std::nullopt, "statistics (of passes, statistics); forward, statistics");
  expect_described(stem, std::nullopt, "x in blocks of 2x2 pixels");
  expect_described(pointwise, InputNormalization{Residual::none, true, false}, "norm, weight gradient");
  expect_described(pointwise, InputNormalization{Residual::none, true, true}, "data gradient + added, norm:");
  expect_described(pointwise, InputNormalization{Residual::plain, true, true}, "norm + residual, forward, statistics");
  expect_described(pointwise, InputNormalization{Residual::normalized, true, true},
                   "data gradient + added, norm + norm:");
  expect_described(window, InputNormalization{Residual::plain, true, true}, "normalisation in a pass");
  expect_described(window, InputNormalization{Residual::none, false, false}, "statistics (of passes, statistics)");
}

/// For statistics in bf16, cuDNN compiles kernels, which only timing may choose.
TEST(Conv2dBf16, StatisticsInAPassUnlessTimed) {
  if (!is_tested_device("host")) GTEST_SKIP() << "it tests the emulated kernels";
  Conv2dDescription d = describe(kFp16Cases[5], std::nullopt);
  d.dtype = DType::bf16;
  const std::string untimed = make_cuda_on_host_backend()->make(d)->describe();
  EXPECT_NE(untimed.find("passes (of passes, statistics); forward:"), std::string::npos) << untimed;
  const std::string expected = make_cuda_on_host_backend("statistics")->make(d)->describe();
  EXPECT_NE(expected.find("statistics (of passes, statistics); forward, statistics:"), std::string::npos) << expected;
}
#endif

TEST(Conv2d, InferenceGivesTheSameOutput) {
  reference::ReferenceBackend reference;
  for (const ConvolutionCase& c : kCases) {
    Conv2dDescription d = describe(c, InputNormalization{InputNormalization::Residual::plain, true, true});
    d.inference = true;
    d.statistics = false;
    const UnitInputs inputs = make_inputs(d, 900);
    const UnitOutputs expected = run(reference, d, inputs, {});
    for (auto& [name, backend] : tested_backends()) {
      SCOPED_TRACE(std::string(name) + ", x " + d.x.text());
      expect_within_rounding(run(*backend, d, inputs, {}), expected, magnitudes(d, inputs, {}), lengths(d));
    }
  }
}

/// An op for another batch size, or for inference, must be able to read the weights of the training op.
TEST(Conv2d, AcceptsTheWeightLayoutOfAnotherOp) {
  reference::ReferenceBackend reference;
  for (const ConvolutionCase& c : kCases) {
    const Conv2dDescription training = describe(c, std::nullopt);
    Conv2dDescription evaluation = training;
    evaluation.x = {7, c.x[1], c.x[2], c.x[3]};
    evaluation.inference = true;
    evaluation.statistics = false;
    const UnitInputs inputs = make_inputs(evaluation, 901);
    const UnitOutputs expected = run(reference, evaluation, inputs, {});
    const UnitOutputs magnitude = magnitudes(evaluation, inputs, {});
    for (auto& [name, backend] : tested_backends()) {
      SCOPED_TRACE(std::string(name) + ", x " + c.x.text());
      Conv2dDescription planned = evaluation;
      planned.weight_layout = backend->make(training)->weight_layout();
      expect_within_rounding(run(*backend, planned, inputs, {}), expected, magnitude, lengths(evaluation));
    }
  }
}

TEST(Conv2d, WeightsSurviveTheirLayout) {
  for (const ConvolutionCase& c : kCases)
    for (auto& [name, backend] : tested_backends()) {
      const auto layout = backend->make(describe(c, std::nullopt))->weight_layout();
      const std::vector<float> weight = random_normal(c.out_channels * c.x[3] * c.kernel_size * c.kernel_size, 902);
      std::vector<float> packed(layout->n_elements(), NAN);
      std::vector<float> unpacked(weight.size(), NAN);
      layout->pack(weight, packed.data());
      layout->unpack(packed.data(), unpacked);
      EXPECT_EQ(unpacked, weight) << name << ", " << layout->describe();
      double sum = 0;
      double packed_sum = 0;
      for (float w : weight) sum += std::abs(w);
      for (float w : packed) packed_sum += std::abs(w);
      EXPECT_NEAR(packed_sum, sum, 1e-9 * sum) << name << ": padding must be zero";
    }
}

/// Repeated calls of an op give the same bits: nothing is left over from one call to the next.
TEST(Conv2d, EachCallProducesTheSameBits) {
  const Conv2dDescription d =
      describe(kCases[5], InputNormalization{InputNormalization::Residual::normalized, true, false});
  const UnitInputs inputs = make_inputs(d, 903);
  for (auto& [name, backend] : tested_backends()) {
    const UnitOutputs first = run(*backend, d, inputs, {});
    const UnitOutputs second = run(*backend, d, inputs, {});
    EXPECT_EQ(first.y, second.y) << name;
    EXPECT_EQ(first.dx, second.dx) << name;
    EXPECT_EQ(first.dweight, second.dweight) << name;
    EXPECT_EQ(first.sums, second.sums) << name;
    EXPECT_EQ(first.statistics, second.statistics) << name;
  }
}

class Conv2dGradient : public testing::TestWithParam<std::tuple<int, int>> {};

TEST_P(Conv2dGradient, AgreesWithFiniteDifferences) {
  const auto [case_number, normalization_number] = GetParam();
  Conv2dDescription d =
      describe(kCases[case_number], all_normalizations()[static_cast<std::size_t>(normalization_number)]);
  d.input_gradient = true;
  const UnitInputs inputs = make_inputs(d, static_cast<std::uint32_t>(500 + case_number * 20 + normalization_number));
  DoubleUnit<Conv2dDescription>(d, inputs).expect_gradients_match();
}

// Stored normalisations only (the even numbers): the loss reads z.
INSTANTIATE_TEST_SUITE_P(All, Conv2dGradient,
                         testing::Combine(testing::Values(1, 2, 5, 7, 9, 11), testing::Values(0, 2, 4, 6, 8, 10, 12)));

}  // namespace
}  // namespace lockstep::test
