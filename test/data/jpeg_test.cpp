// The JPEG decoder: every kind of image becomes RGB, all damage is reported, and the decoder can be used again.
#include "data/image_decoder.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

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

/// The mean absolute difference from `expected(y, x, c)`.
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
  // The loss due to quality 95 and halved colour resolution, for an image whose values wrap around.
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

std::vector<std::uint8_t> noise_on(std::vector<std::uint8_t> pixels, std::uint32_t seed) {
  std::mt19937 random(seed);
  for (auto& v : pixels) v = static_cast<std::uint8_t>(v / 2 + random() % 128);
  return pixels;
}

/// The pixels of `area` in an image of rows of `width` pixels that begins at `origin`.
std::vector<std::uint8_t> cut(const std::vector<std::uint8_t>& pixels, int channels, const PixelArea& image,
                              const PixelArea& area) {
  std::vector<std::uint8_t> out;
  for (int y = area.top; y < area.top + area.height; ++y) {
    const auto from = pixels.begin() + ((y - image.top) * image.width + area.left - image.left) * channels;
    out.insert(out.end(), from, from + area.width * channels);
  }
  return out;
}

// The pixels of a part must not depend on what else is decoded, whatever the form in which JPEG stores colours.
TEST(Jpeg, APartHasTheBitsOfTheWholeImage) {
  constexpr int kHeight = 77, kWidth = 101;
  std::mt19937 random(7);
  const auto below = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  JpegDecoder whole, part;
  std::vector<std::uint8_t> expected, found;
  struct Form {
    int channels, columns, rows, restart_rows;
  };
  for (const Form& form : {Form{3, 1, 1, 0},
                           {3, 2, 1, 0},
                           {3, 2, 2, 0},
                           {3, 1, 2, 0},
                           {3, 4, 1, 0},
                           {3, 2, 2, 1},
                           {1, 1, 1, 0},
                           {4, 1, 1, 0}})
    for (const bool progressive : {false, true}) {
      const JpegOptions options{.channels = form.channels,
                                .quality = 90,
                                .progressive = progressive,
                                .colour_columns = form.columns,
                                .colour_rows = form.rows,
                                .restart_rows = form.restart_rows};
      const std::string jpeg =
          encode_jpeg(noise_on(smooth_pixels(kHeight, kWidth, form.channels, 4), 3), kHeight, kWidth, options);
      for (const int eighths : {1, 2, 4, 8})
        for (const int channels : {3, 1}) {
          ASSERT_TRUE(whole.open(bytes_of(jpeg)) && whole.start(eighths, channels));
          const PixelArea image = whole.decoded_area();
          expected.resize(static_cast<std::size_t>(channels * image.width * image.height));
          ASSERT_TRUE(whole.read_pixels(expected)) << whole.reason();
          for (int i = 0; i < 30; ++i) {
            PixelArea needed{.left = below(image.width), .top = below(image.height)};
            needed.width = 1 + below(image.width - needed.left);
            needed.height = 1 + below(image.height - needed.top);
            const RowsBelow rest = i % 2 == 0 ? RowsBelow::ignored : RowsBelow::parsed;
            SCOPED_TRACE(::testing::Message()
                         << form.columns << "x" << form.rows << ", " << form.channels << " to " << channels
                         << " channels, progressive " << progressive << ", " << eighths << " eighths: " << needed.width
                         << " x " << needed.height << " at " << needed.left << ", " << needed.top);
            ASSERT_TRUE(part.open(bytes_of(jpeg)) && part.start(eighths, channels) && part.crop(needed, rest));
            const PixelArea area = part.decoded_area();
            ASSERT_TRUE(area.contains(needed) && image.contains(area));
            found.resize(static_cast<std::size_t>(channels * area.width * area.height));
            ASSERT_TRUE(part.read_pixels(found)) << part.reason();
            ASSERT_EQ(cut(found, channels, area, needed), cut(expected, channels, image, needed));
          }
        }
    }
}

// For a part of 32 x 32 pixels, at most one extra block on the left, the neighbours for interpolation, and no rows
// below are decoded.
TEST(Jpeg, DecodesLittleMoreThanThePart) {
  const std::string jpeg = smooth_jpeg(400, 400, 1);
  JpegDecoder decoder;
  const PixelArea needed{.left = 200, .top = 120, .width = 32, .height = 32};
  ASSERT_TRUE(decoder.open(bytes_of(jpeg)) && decoder.start(8) && decoder.crop(needed, RowsBelow::ignored));
  const PixelArea area = decoder.decoded_area();
  EXPECT_LE(area.width, 32 + 16 + 4);
  EXPECT_LE(area.height, 32 + 2);
  EXPECT_EQ(area.top + area.height, needed.top + needed.height);
}

TEST(Jpeg, FindsDamageBelowAPartOnlyIfAskedTo) {
  const std::string good = smooth_jpeg(400, 400, 1), cut_off = good.substr(0, good.size() - 200);
  JpegDecoder decoder;
  std::vector<std::uint8_t> rgb;
  const auto decodes = [&](const std::string& jpeg, RowsBelow rest) {
    if (!decoder.open(bytes_of(jpeg)) || !decoder.start(8)) return false;
    if (!decoder.crop({.left = 100, .top = 100, .width = 50, .height = 50}, rest)) return false;
    rgb.resize(std::size_t{3} * decoder.decoded_area().width * decoder.decoded_area().height);
    return decoder.read_pixels(rgb);
  };
  EXPECT_TRUE(decodes(good, RowsBelow::parsed)) << decoder.reason();
  EXPECT_TRUE(decodes(cut_off, RowsBelow::ignored)) << decoder.reason();
  EXPECT_FALSE(decodes(cut_off, RowsBelow::parsed));
  EXPECT_NE(decoder.reason().find("Premature end"), std::string::npos) << decoder.reason();
  EXPECT_FALSE(decodes(good.substr(0, 300), RowsBelow::ignored)) << "damage above";
  EXPECT_TRUE(decodes(good, RowsBelow::parsed)) << decoder.reason();
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
