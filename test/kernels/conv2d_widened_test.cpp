// Convolutions in bf16 that are multiplied in fp32: groups of images, both modes of the weight gradient, and the
// workspace.
#include "kernels/cpu/conv2d_bare.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "kernels/cpu/backend.h"
#include "kernels/cpu/base/widen.h"
#include "lockstep/philox.h"
#include "test/support/chosen_algorithm.h"
#include "test/support/unit.h"

namespace lockstep::cpu {
namespace {

Conv2dDescription describe(const Shape& x, std::int64_t out_channels, int kernel_size, int stride) {
  Conv2dDescription d{.x = x, .out_channels = out_channels, .kernel_size = kernel_size, .stride = stride};
  d.padding = kernel_size / 2;
  d.dtype = DType::bf16;
  return d;
}

/// Groups of 3 and 2 images, a first layer, channels that do not fill a block, a stride, and images of few pixels.
TEST(Conv2dWidened, GroupsOfImagesGiveTheSum) {
#ifndef LOCKSTEP_DNNL
  GTEST_SKIP() << "without oneDNN, these are no algorithms: our own products take bf16 as it is";
#endif
  for (Conv2dDescription d : {describe({5, 40, 40, 64}, 32, 3, 1), describe({5, 60, 60, 3}, 64, 3, 2),
                              describe({3, 40, 41, 40}, 24, 1, 1), describe({2, 4, 4, 64}, 64, 3, 2)}) {
    const test::UnitInputs inputs = test::rounded_to(DType::bf16, test::make_inputs(d, 3));
    const Algorithms::Choices choices = test::choices_of(d, 2);
    for (const GradientMode dweight : {GradientMode::overwrite, GradientMode::accumulate}) {
      const test::UnitModes modes{.dweight = dweight};
      Conv2dDescription in_fp32 = d;
      in_fp32.dtype = DType::fp32;
      const auto fixed = make_backend({.device = "cpu", .threads = 2}, {});
      const test::UnitOutputs expected = test::run(*fixed, in_fp32, inputs, modes);
      const test::UnitOutputs magnitude = test::magnitudes(in_fp32, inputs, modes);
      for (const char* algorithm : {"widened direct", "widened blocks", "widened matmul"}) {
        const auto backend = test::backend_with(algorithm, choices, 2);
        const std::string described = backend->make(d)->describe();
        SCOPED_TRACE(std::string(algorithm) + ": " + described);
        if (algorithm != std::string("widened blocks")) {
          EXPECT_NE(described.find("multiplied in fp32"), std::string::npos);
        }
        test::expect_within_rounding(test::run(*backend, d, inputs, modes), expected, magnitude, test::lengths(d),
                                     DType::bf16);
      }
    }
  }
}

TEST(Conv2dWidened, TheWorkspaceDoesNotGrowWithTheBatch) {
  const CpuContext context{1};
  std::size_t bytes_of_8 = 0;
  for (const std::int64_t images : {8, 128}) {
    const Conv2dDescription d = describe({images, 56, 56, 64}, 64, 3, 1);  // 1.6 MB per image in fp32
    for (const Direction direction : {Direction::forward, Direction::data_gradient, Direction::weight_gradient}) {
      const std::size_t found =
          make_widened_convolution(d, widened(d, true), direction, context, make_matmul_convolution)->workspace_bytes();
      EXPECT_LT(found, std::size_t{16} << 20) << name(direction) << ", " << images << " images";
      if (direction != Direction::forward) continue;
      if (images == 8) bytes_of_8 = found;
      EXPECT_EQ(found, bytes_of_8);
    }
  }
}

TEST(Widen, RestoresEveryNumberInEachLayout) {
  const CpuContext context{2};
  for (const Layout layout : {Layout::nhwc, Layout::nchw16c}) {
    const ImageRows shape{.images = 3, .pixels = 35, .channels = layout == Layout::nhwc ? 7 : 48};
    const auto n = static_cast<std::size_t>(shape.n_elements());
    const Philox philox(4, RandomPurpose::synthetic, 1, 0);
    std::vector<Bf16> values(n), restored(n);
    std::vector<float> wide(n, -1.0f);
    for (std::size_t i = 0; i < n; ++i) values[i] = to_bf16(static_cast<float>(4 * philox.uniform(i) - 2));
    widen(shape, values.data(), layout, wide.data(), context);
    const std::int64_t blocks = shape.channels / kChannelBlock;
    for (std::int64_t i = 0; i < shape.n_elements(); ++i) {
      const std::int64_t channel = i % shape.channels, row = i / shape.channels;
      const std::int64_t image = row / shape.pixels, pixel = row % shape.pixels;
      const std::int64_t at =
          layout == Layout::nhwc ? i : ((image * blocks + channel / 16) * shape.pixels + pixel) * 16 + channel % 16;
      ASSERT_EQ(wide[static_cast<std::size_t>(at)], to_float(values[static_cast<std::size_t>(i)])) << "element " << i;
    }
    narrow(shape, layout, wide.data(), restored.data(), context);
    for (std::size_t i = 0; i < n; ++i) ASSERT_EQ(to_float(restored[i]), to_float(values[i])) << "element " << i;
  }
}

}  // namespace
}  // namespace lockstep::cpu
