// The JPEG decoder: every kind of image becomes RGB, every damaged one is reported, and the decoder can be used again.
#include "data/jpeg.h"

#include <gtest/gtest.h>

#include <cmath>

#include "test/data/jpeg_files.h"

namespace lockstep::data {
namespace {

std::span<const std::uint8_t> bytes_of(const std::string& text) {
  return {reinterpret_cast<const std::uint8_t*>(text.data()), text.size()};
}

bool decode(JpegDecoder& decoder, const std::string& jpeg, int eighths, std::vector<std::uint8_t>& rgb) {
  if (!decoder.open(bytes_of(jpeg)) || !decoder.start(eighths)) return false;
  rgb.resize(std::size_t{3} * decoder.decoded_width() * decoder.decoded_height());
  return decoder.read_pixels(rgb);
}

/// Greatest mean distance of a channel from `expected(y, x, c)`.
template <typename Expected>
double mean_distance(const std::vector<std::uint8_t>& rgb, int height, int width, const Expected& expected) {
  double sum = 0;
  for (int y = 0; y < height; ++y)
    for (int x = 0; x < width; ++x)
      for (int c = 0; c < 3; ++c) sum += std::abs(rgb[std::size_t((y * width + x) * 3 + c)] - expected(y, x, c));
  return sum / (3.0 * height * width);
}

TEST(Jpeg, ReadsColourGreyCmykAndProgressive) {
  constexpr int kHeight = 24, kWidth = 40;
  // The loss of quality 95 and of halved colour resolution, for an image whose values wrap around.
  constexpr double kLoss = 8;
  JpegDecoder decoder;
  std::vector<std::uint8_t> rgb;
  for (const bool progressive : {false, true}) {
    ASSERT_TRUE(decode(decoder, smooth_jpeg(kHeight, kWidth, 1, {.progressive = progressive}), 8, rgb));
    EXPECT_EQ(decoder.height(), kHeight);
    EXPECT_EQ(decoder.width(), kWidth);
    EXPECT_LT(mean_distance(rgb, kHeight, kWidth, [](int y, int x, int c) { return smooth_value(y, x, c, 1); }), kLoss);
    ASSERT_TRUE(decode(decoder, smooth_jpeg(kHeight, kWidth, 2, {.channels = 1, .progressive = progressive}), 8, rgb));
    EXPECT_LT(mean_distance(rgb, kHeight, kWidth, [](int y, int x, int) { return smooth_value(y, x, 0, 2); }), kLoss);
  }
  ASSERT_TRUE(decode(decoder, smooth_jpeg(kHeight, kWidth, 3, {.channels = 4}), 8, rgb)) << decoder.reason();
  const auto from_inks = [](int y, int x, int c) {
    return smooth_value(y, x, c, 3) * smooth_value(y, x, 3, 3) / 255.0;
  };
  EXPECT_LT(mean_distance(rgb, kHeight, kWidth, from_inks), kLoss);
}

TEST(Jpeg, DecodesToEighthsRoundedUp) {
  JpegDecoder decoder;
  std::vector<std::uint8_t> rgb;
  const std::vector<std::uint8_t> even(33 * 65 * 3, 120);
  for (const int eighths : {1, 2, 4, 8}) {
    ASSERT_TRUE(decode(decoder, encode_jpeg(even, 33, 65), eighths, rgb));
    EXPECT_EQ(decoder.decoded_height(), (33 * eighths + 7) / 8);
    EXPECT_EQ(decoder.decoded_width(), (65 * eighths + 7) / 8);
    for (const std::uint8_t value : rgb) ASSERT_NEAR(value, 120, 1);
  }
  ASSERT_TRUE(decode(decoder, smooth_jpeg(1, 1), 1, rgb));
  EXPECT_EQ(rgb.size(), 3u);
}

TEST(Jpeg, ReportsDamageAndDecodesTheNextImage) {
  const std::string good = smooth_jpeg(64, 48, 5);
  JpegDecoder decoder;
  std::vector<std::uint8_t> rgb;
  const auto expect_bad = [&](const std::string& jpeg, const std::string& reason) {
    EXPECT_FALSE(decode(decoder, jpeg, 8, rgb)) << reason;
    EXPECT_NE(decoder.reason().find(reason), std::string::npos) << decoder.reason();
    EXPECT_TRUE(decode(decoder, good, 8, rgb)) << "after: " << reason << ": " << decoder.reason();
  };
  expect_bad("", "empty");
  expect_bad("a text, not an image", "Not a JPEG file");
  expect_bad(std::string("\xff\xd8", 2), "Premature end");
  expect_bad(good.substr(0, 300), "");
  for (const std::size_t cut : {good.size() / 2, good.size() - 40}) expect_bad(good.substr(0, cut), "Premature end");
  // Decompression bombs are rejected by their header, before memory is allocated for the pixels.
  expect_bad(with_size(good, 20000, 20000), "20000 x 20000 pixels exceed");
  expect_bad(with_size(smooth_jpeg(64, 48, 5, {.progressive = true}), 65000, 65000), "pixels exceed");
  expect_bad(with_size(good, 640, 480), "remature end");
  expect_bad(with_size(good, 64, 0), "");
}

}  // namespace
}  // namespace lockstep::data
