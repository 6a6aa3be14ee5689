// Resizing, compared with its definition in double precision, and the selected parts of images.
#include "data/resize.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "data/image_set.h"
#include "data/image_shape.h"
#include "kernels/cpu/base/simd.h"

namespace lockstep::data {
namespace {

// Two roundings to 8 bits, one per direction: the error of the first is averaged, that of the second is at most half a
// level.
constexpr double kTolerance = 1.0 + 1e-3;

/// resize.h's formula, both directions at once, without rounding.
double reference(const std::vector<std::uint8_t>& image, int height, int width, const Box& box, int out_height,
                 int out_width, int y, int x, int c) {
  const auto weights = [](double begin, double end, int n_out, int i, int n_in) {
    const double scale = (end - begin) / n_out, centre = begin + (i + 0.5) * scale, support = std::max(1.0, scale);
    std::vector<double> w(static_cast<std::size_t>(n_in));
    for (int k = 0; k < n_in; ++k)
      w[static_cast<std::size_t>(k)] = std::max(0.0, 1 - std::abs(k + 0.5 - centre) / support);
    double sum = 0;
    for (const double v : w) sum += v;
    for (double& v : w) v /= sum;
    return w;
  };
  const auto rows = weights(box.top, box.bottom, out_height, y, height);
  const auto columns = weights(box.left, box.right, out_width, x, width);
  double sum = 0;
  for (int h = 0; h < height; ++h)
    for (int w = 0; w < width; ++w)
      sum += rows[static_cast<std::size_t>(h)] * columns[static_cast<std::size_t>(w)] *
             image[static_cast<std::size_t>((h * width + w) * 3 + c)];
  return sum;
}

TEST(Resize, AgreesWithItsDefinition) {
  std::mt19937 random(1);
  struct Case {
    int height, width;
    Box box;
    int out;
  };
  const Case cases[] = {{1, 1, {0, 0, 1, 1}, 4},        {9, 7, {0, 0, 7, 9}, 9},     {30, 41, {0, 0, 41, 30}, 8},
                        {13, 17, {3, 2, 9, 11}, 16},    {40, 40, {0, 0, 40, 40}, 1}, {24, 32, {0.4, 1.7, 31.2, 23}, 12},
                        {20, 20, {5.5, 5.5, 6, 6}, 10}, {64, 50, {7, 0, 50, 64}, 33}};
  for (const Case& t : cases) {
    std::vector<std::uint8_t> image(static_cast<std::size_t>(t.height * t.width * 3));
    for (auto& v : image) v = static_cast<std::uint8_t>(random());
    std::vector<std::uint8_t> out(static_cast<std::size_t>(t.out * t.out * 3));
    Resizer resizer;
    resizer.resize({image.data(), t.height, t.width, 3, t.width * 3}, t.box, t.out, t.out, out);
    for (int y = 0; y < t.out; ++y)
      for (int x = 0; x < t.out; ++x)
        for (int c = 0; c < 3; ++c)
          ASSERT_NEAR(out[static_cast<std::size_t>((y * t.out + x) * 3 + c)],
                      reference(image, t.height, t.width, t.box, t.out, t.out, y, x, c), kTolerance)
              << t.height << " x " << t.width << " to " << t.out << " at " << y << ", " << x;
  }
}

std::vector<std::uint8_t> random_image(int height, int width, int channels, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<std::uint8_t> image(static_cast<std::size_t>(height * width * channels));
  for (auto& v : image) v = static_cast<std::uint8_t>(random());
  return image;
}

// The sums are exact, so every instruction set must give the same bytes: tested with all row lengths and numbers of
// rows, and with vectors that end where the memory of the image ends.
TEST(Resize, EveryInstructionSetGivesTheSameBytes) {
  std::mt19937 random(5);
  const auto below = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  for (int i = 0; i < 300; ++i) {
    const int height = 1 + below(90), width = 1 + below(90), channels = i % 4 == 0 ? 1 : 3;
    const int out_height = 1 + below(40), out_width = 1 + below(40);
    const auto image = random_image(height, width, channels, static_cast<std::uint32_t>(i));
    Box box{.left = double(below(width)), .top = double(below(height))};
    box.right = box.left + 1 + below(width - static_cast<int>(box.left));
    box.bottom = box.top + 1 + below(height - static_cast<int>(box.top));
    std::vector<std::uint8_t> expected;
    for (const cpu::Isa isa : {cpu::Isa::baseline, cpu::Isa::avx2, cpu::Isa::avx512}) {
      cpu::limit_isa(isa);
      std::vector<std::uint8_t> out(static_cast<std::size_t>(out_height * out_width * channels));
      Resizer().resize({image.data(), height, width, channels, std::ptrdiff_t{width} * channels}, box, out_height,
                       out_width, out);
      if (isa == cpu::Isa::baseline) expected = out;
      EXPECT_EQ(out, expected) << height << " x " << width << " to " << out_height << " x " << out_width << ", isa "
                               << static_cast<int>(isa);
    }
  }
  cpu::limit_isa(cpu::Isa::avx512);
}

// Thousands of neighbours, all white: the largest possible sums.
TEST(Resize, DoesNotOverflow) {
  const std::vector<std::uint8_t> white(std::size_t{3} * 8 * 60000, 255);
  std::vector<std::uint8_t> out(3 * 2 * 4);
  Resizer().resize({white.data(), 8, 60000, 3, 3 * 60000}, {0, 0, 60000, 8}, 2, 4, out);
  EXPECT_EQ(out, std::vector<std::uint8_t>(out.size(), 255));
}

// The result is the same, byte for byte, if only the pixels that are read are available.
TEST(Resize, AnAreaIsEnough) {
  std::mt19937 random(9);
  const auto uniform = [&](double n) { return n * static_cast<double>(random() % 1000) / 1000; };
  const int height = 70, width = 83;
  const auto image = random_image(height, width, 3, 1);
  for (int i = 0; i < 100; ++i) {
    Box box{.left = uniform(60), .top = uniform(50)};
    box.right = box.left + 1 + uniform(width - box.left - 1);
    box.bottom = box.top + 1 + uniform(height - box.top - 1);
    const PixelArea area = area_read(box, height, width, 11, 17);
    std::vector<std::uint8_t> part, expected(3 * 11 * 17), found(expected.size());
    for (int y = area.top; y < area.top + area.height; ++y) {
      const auto from = image.begin() + (y * width + area.left) * 3;
      part.insert(part.end(), from, from + area.width * 3);
    }
    Resizer().resize({image.data(), height, width, 3, 3 * width}, box, 11, 17, expected);
    Resizer().resize_area({part.data(), height, width, 3, std::ptrdiff_t{3} * area.width}, area, box, 11, 17, found);
    EXPECT_EQ(found, expected);
  }
}

TEST(Resize, SameSizeIsACopy) {
  std::vector<std::uint8_t> image(5 * 5 * 3), out(image.size());
  for (std::size_t i = 0; i < image.size(); ++i) image[i] = static_cast<std::uint8_t>(i * 3);
  Resizer resizer;
  resizer.resize({image.data(), 5, 5, 3, 15}, {0, 0, 5, 5}, 5, 5, out);
  EXPECT_EQ(out, image);
}

TEST(RandomBox, HasTheDistributionOfRandomResizedCrop) {
  constexpr int kHeight = 300, kWidth = 400, kDraws = 4000;
  double areas = 0, log_ratios = 0, middles = 0;
  for (std::uint32_t i = 0; i < kDraws; ++i) {
    const Box b = random_box(kHeight, kWidth, 1, i, 0);
    const double w = b.right - b.left, h = b.bottom - b.top;
    ASSERT_GE(b.left, 0);
    ASSERT_GE(b.top, 0);
    ASSERT_LE(b.right, kWidth);
    ASSERT_LE(b.bottom, kHeight);
    ASSERT_GE(w * h, 0.08 * kHeight * kWidth - w - h);
    ASSERT_GE(w / h, 0.74);
    ASSERT_LE(w / h, 1.35);
    areas += w * h / (kHeight * kWidth) / kDraws;
    log_ratios += std::log(w / h) / kDraws;
    middles += (b.left + b.right) / 2 / kWidth / kDraws;
  }
  // torchvision 0.29's RandomResizedCrop.get_params on 300 x 400, with 40,000 draws: area 0.434, log of the ratio
  // 0.0315. The standard errors of the 4,000 draws here are 0.0034 and 0.0026. Large areas with an unsuitable ratio do
  // not fit and are drawn again.
  EXPECT_NEAR(areas, 0.434, 0.014);
  EXPECT_NEAR(log_ratios, 0.0315, 0.011);
  EXPECT_NEAR(middles, 0.5, 0.01);
}

TEST(RandomBox, DependsOnSeedSampleAndEpochAlone) {
  const auto draw = [](std::uint32_t seed, std::uint32_t sample, std::uint32_t epoch) {
    const Box b = random_box(200, 300, seed, sample, epoch);
    return std::array{b.left, b.top, b.right, b.bottom};
  };
  EXPECT_EQ(draw(1, 2, 3), draw(1, 2, 3));
  EXPECT_NE(draw(1, 2, 3), draw(2, 2, 3));
  EXPECT_NE(draw(1, 2, 3), draw(1, 3, 3));
  EXPECT_NE(draw(1, 2, 3), draw(1, 2, 4));
}

TEST(RandomBox, FallsBackToTheCentre) {
  const Box wide = random_box(10, 1000, 1, 0, 0);  // no part of 8 % with such a ratio fits
  EXPECT_EQ(wide.right - wide.left, 13);
  EXPECT_EQ(wide.left, 493);
  const Box tall = random_box(1000, 1, 1, 0, 0);
  EXPECT_EQ(tall.right - tall.left, 1);
  EXPECT_EQ(tall.bottom - tall.top, 1);
}

TEST(CentreBox, IsTheCropOfTheResizedImage) {
  // 500 x 375 for 224: resized to 341 x 256, cropped at column 58 (58.5 to even) and row 16.
  const Box b = centre_box(375, 500, 224);
  EXPECT_DOUBLE_EQ(b.left, 58.0 * 500 / 341);
  EXPECT_DOUBLE_EQ(b.right, 282.0 * 500 / 341);
  EXPECT_DOUBLE_EQ(b.top, 16.0 * 375 / 256);
  EXPECT_DOUBLE_EQ(b.bottom, 240.0 * 375 / 256);
}

/// Images that already have the size are kept, unless a `resize` other than the default is requested.
TEST(ImageShaping, KeepsImagesOfTheRightSize) {
  const auto image = [](const ImageShaping& shaping) {
    const auto set = shape_image_set(make_synthetic_set(1, 4, 28, 28, 3, 2, "train"), shaping);
    std::vector<std::uint8_t> pixels(set->info().image_bytes());
    std::int32_t label = 0;
    set->read_image(3, 0, pixels, label);
    return pixels;
  };
  const auto stored = image({});
  EXPECT_EQ(image({.image_size = 28}), stored);
  EXPECT_EQ(image({.image_size = 28, .resize = 28}), stored);
  EXPECT_EQ(image({.image_size = 28, .resize = 32}), stored);  // the default for 28
  const auto enlarged = image({.image_size = 28, .resize = 30});
  std::vector<std::uint8_t> expected(stored.size());
  Resizer().resize({stored.data(), 28, 28, 3, 84}, centre_box(28, 28, 28, 30), 28, 28, expected);
  EXPECT_EQ(enlarged, expected);
  EXPECT_NE(enlarged, stored);
}

TEST(CentreBox, ResizesToAGivenLengthFirst) {
  // 500 x 375 is resized to 309 x 232, from which 224 x 224 are cropped at column 42 (42.5 to even) and row 4.
  const Box b = centre_box(375, 500, 224, 232);
  EXPECT_DOUBLE_EQ(b.left, 42.0 * 500 / 309);
  EXPECT_DOUBLE_EQ(b.right, 266.0 * 500 / 309);
  EXPECT_DOUBLE_EQ(b.top, 4.0 * 375 / 232);
  EXPECT_DOUBLE_EQ(b.bottom, 228.0 * 375 / 232);
}

}  // namespace
}  // namespace lockstep::data
