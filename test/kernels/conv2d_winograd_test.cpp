// Winograd convolutions, compared with the reference: tiles that extend beyond the image, both layouts, both modes of
// the weight gradient, and any number of threads; also how much larger their rounding errors are than those of direct
// summation.
#include "kernels/cpu/conv2d_bare.h"

#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "kernels/cpu/base/simd.h"
#include "lockstep/algorithms.h"
#include "test/reference/backend.h"
#include "test/support/chosen_algorithm.h"
#include "test/support/unit.h"

namespace lockstep::test {
namespace {

Conv2dDescription describe(const Shape& x, std::int64_t out_channels, Layout layout) {
  Conv2dDescription d{.x = x, .out_channels = out_channels};
  d.x_layout = d.y_layout = layout;
  return d;
}

/// Errors are relative to the largest terms of a tile, not to those of one element, and are larger on average (see
/// below).
UnitLengths allowed_lengths(const Conv2dDescription& d) {
  UnitLengths allowed = lengths(d);
  for (double* n : {&allowed.n_forward, &allowed.n_data, &allowed.n_weight}) *n = 4 * *n + 16;
  return allowed;
}

TEST(Conv2dWinograd, AgreesWithTheReference) {
  reference::ReferenceBackend reference;
  std::uint32_t stream = 0;
  for (const Shape& x : {Shape{1, 1, 1, 32}, Shape{2, 4, 4, 64}, Shape{3, 5, 7, 32}, Shape{2, 9, 6, 96},
                         Shape{30, 7, 8, 32}, Shape{1, 45, 41, 32}})  // the last two have more than 96 tiles
    for (const auto& [dtype, layout] : {std::pair(DType::fp32, Layout::nhwc), std::pair(DType::fp32, Layout::nchw16c),
                                        std::pair(DType::bf16, Layout::nhwc)}) {
      const Conv2dDescription plain = describe(x, 64, Layout::nhwc);
      Conv2dDescription d = describe(x, 64, layout);
      d.dtype = dtype;
      std::vector<std::unique_ptr<Backend>> backends;
      for (const int threads : {1, 3}) backends.push_back(backend_with("winograd", choices_of(d, threads), threads));
      for (const GradientMode dweight : {GradientMode::overwrite, GradientMode::accumulate}) {
        const UnitModes modes{.dweight = dweight};
        const UnitInputs inputs = rounded_to(DType::bf16, make_inputs(plain, ++stream));
        const UnitOutputs expected = run(reference, plain, inputs, modes), magnitude = magnitudes(plain, inputs, modes);
        std::vector<UnitOutputs> outputs;
        for (const auto& backend : backends) {
          const std::string described = backend->make(d)->describe();
          SCOPED_TRACE(described + ", " + text(modes));
          EXPECT_NE(described.find("Winograd"), std::string::npos);
          outputs.push_back(run(*backend, d, inputs, modes));
          expect_within_rounding(outputs.back(), expected, magnitude, allowed_lengths(d), dtype);
          EXPECT_EQ(outputs.back().y, outputs[0].y) << "the threads do not matter";
          EXPECT_EQ(outputs.back().dx, outputs[0].dx);
          EXPECT_EQ(outputs.back().dweight, outputs[0].dweight);
        }
      }
    }
}

TEST(Conv2dWinograd, EachInstructionSetAgreesWithTheReference) {
  reference::ReferenceBackend reference;
  const Conv2dDescription d = describe({2, 5, 7, 64}, 32, Layout::nhwc);
  const UnitInputs inputs = make_inputs(d, 5);
  const UnitOutputs expected = run(reference, d, inputs, {}), magnitude = magnitudes(d, inputs, {});
  const auto backend = backend_with("winograd", choices_of(d, 2), 2);
  for (const cpu::Isa isa : {cpu::Isa::baseline, cpu::Isa::avx2, cpu::Isa::avx512}) {
    SCOPED_TRACE(name(isa));
    cpu::limit_isa(isa);
    const UnitOutputs actual = run(*backend, d, inputs, {});
    cpu::limit_isa(cpu::Isa::avx512);
    expect_within_rounding(actual, expected, magnitude, allowed_lengths(d));
  }
}

double root_mean_square(const std::vector<float>& a, const std::vector<float>& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += std::pow(static_cast<double>(a[i]) - b[i], 2);
  return std::sqrt(sum / static_cast<double>(a.size()));
}

TEST(Conv2dWinograd, RoundsTwoToFiveTimesAsMuchAsADirectConvolution) {
  reference::ReferenceBackend reference;
  const Conv2dDescription d = describe({4, 16, 16, 64}, 64, Layout::nhwc);
  const UnitInputs inputs = make_inputs(d, 77);
  const UnitOutputs expected = run(reference, d, inputs, {});
  const Algorithms::Choices choices = choices_of(d, 1);
  const UnitOutputs direct = run(*backend_with("matmul", choices, 1), d, inputs, {}),
                    winograd = run(*backend_with("winograd", choices, 1), d, inputs, {});
  const auto expect_ratio = [](const char* what, double of_winograd, double of_direct) {
    std::printf("%s: error %.1e, direct %.1e: %.2f times\n", what, of_winograd, of_direct, of_winograd / of_direct);
    EXPECT_LT(of_winograd, (cpu::isa() == cpu::Isa::avx512 ? 3.5 : 5) * of_direct) << what;
  };
  expect_ratio("y", root_mean_square(winograd.y, expected.y), root_mean_square(direct.y, expected.y));
  expect_ratio("dx", root_mean_square(winograd.dx, expected.dx), root_mean_square(direct.dx, expected.dx));
  expect_ratio("dweight", root_mean_square(winograd.dweight, expected.dweight),
               root_mean_square(direct.dweight, expected.dweight));
}

TEST(Conv2dWinograd, IsNeverChosenWithoutTiming) {
  for (const std::int64_t channels : {32, 512})
    EXPECT_EQ(make_backend({.device = "cpu"})
                  ->make(describe({8, 16, 16, channels}, 64, Layout::nhwc))
                  ->describe()
                  .find("Winograd"),
              std::string::npos);
}

TEST(Conv2dWinograd, OtherWindowsStridesAndChannelsDoNotFit) {
  const Conv2dDescription fitting = describe({2, 8, 8, 64}, 32, Layout::nhwc);
  EXPECT_TRUE(cpu::winograd_fits(fitting, cpu::Direction::forward));
  const auto fits_with = [&](auto change) {
    Conv2dDescription d = fitting;
    change(d);
    return cpu::winograd_fits(d, cpu::Direction::forward);
  };
  EXPECT_FALSE(fits_with([](Conv2dDescription& d) { d.kernel_size = 5; }));
  EXPECT_FALSE(fits_with([](Conv2dDescription& d) { d.stride = 2; }));
  EXPECT_FALSE(fits_with([](Conv2dDescription& d) { d.padding = 0; }));
  EXPECT_FALSE(fits_with([](Conv2dDescription& d) { d.out_channels = 48; }));
  EXPECT_FALSE(fits_with([](Conv2dDescription& d) { d.x = {2, 8, 8, 16}; }));
}

}  // namespace
}  // namespace lockstep::test
