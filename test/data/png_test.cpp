// The PNG decoder: every kind of image becomes 8-bit grey or RGB, and all damage is reported.

#include <gtest/gtest.h>

#include <cstdlib>
#include <tuple>

#include "data/image_decoder.h"
#include "test/data/jpeg_files.h"
#include "test/data/png_files.h"

namespace lockstep::data {
namespace {

constexpr int kHeight = 13, kWidth = 11;

std::span<const std::uint8_t> bytes_of(const std::string& text) {
  return {reinterpret_cast<const std::uint8_t*>(text.data()), text.size()};
}

bool decode(PngDecoder& decoder, const std::string& png, int channels, std::vector<std::uint8_t>& pixels) {
  if (!decoder.open(bytes_of(png))) return false;
  pixels.resize(static_cast<std::size_t>(decoder.height()) * static_cast<std::size_t>(decoder.width() * channels));
  return decoder.read_pixels(channels, pixels);
}

int sample(int y, int x, int c, int bits) { return (y * 5 + x * 3 + c * 17) * 0x3a7 % (1 << bits); }

/// The RGB value that the pixel (y, x) of such an image must become.
std::array<int, 3> expected(int y, int x, const PngOptions& options) {
  if (options.type == PNG_COLOR_TYPE_PALETTE) {
    const png_color color = palette_color(sample(y, x, 0, options.bits));
    return {color.red, color.green, color.blue};
  }
  const bool has_colour = (options.type & PNG_COLOR_MASK_COLOR) != 0;
  std::array<int, 3> out{};
  for (int c = 0; c < 3; ++c) {
    const int v = sample(y, x, has_colour ? c : 0, options.bits);
    out[static_cast<std::size_t>(c)] = options.bits == 16 ? v >> 8 : v * 255 / ((1 << options.bits) - 1);
  }
  return out;
}

void expect_image(const PngOptions& options) {
  SCOPED_TRACE(testing::Message() << "type " << options.type << ", " << options.bits << " bits, interlaced "
                                  << options.interlaced << ", transparent " << options.transparent);
  const std::string png =
      encode_png(kHeight, kWidth, options, [&](int y, int x, int c) { return sample(y, x, c, options.bits); });
  PngDecoder decoder;
  std::vector<std::uint8_t> rgb, grey;
  ASSERT_TRUE(decode(decoder, png, 3, rgb)) << decoder.reason();
  EXPECT_EQ(decoder.height(), kHeight);
  EXPECT_EQ(decoder.width(), kWidth);
  EXPECT_EQ(decoder.is_grey(), (options.type & PNG_COLOR_MASK_COLOR) == 0);
  ASSERT_TRUE(decode(decoder, png, 1, grey)) << decoder.reason();
  for (int i = 0; i < kHeight * kWidth; ++i) {
    const auto want = expected(i / kWidth, i % kWidth, options);
    const auto at = static_cast<std::size_t>(i);
    for (std::size_t c = 0; c < 3; ++c) ASSERT_EQ(rgb[3 * at + c], want[c]) << "pixel " << i << ", channel " << c;
    const int brightness = (299 * want[0] + 587 * want[1] + 114 * want[2] + 500) / 1000;
    ASSERT_NEAR(grey[at], brightness, decoder.is_grey() ? 0 : 1) << "pixel " << i;
  }
}

TEST(Png, ReadsEveryKindAsGreyAndAsRgb) {
  const std::vector<std::pair<int, std::vector<int>>> kinds = {{PNG_COLOR_TYPE_GRAY, {1, 2, 4, 8, 16}},
                                                               {PNG_COLOR_TYPE_RGB, {8, 16}},
                                                               {PNG_COLOR_TYPE_PALETTE, {1, 2, 4, 8}},
                                                               {PNG_COLOR_TYPE_GRAY_ALPHA, {8, 16}},
                                                               {PNG_COLOR_TYPE_RGB_ALPHA, {8, 16}}};
  for (const auto& [type, depths] : kinds)
    for (const int bits : depths)
      for (const bool interlaced : {false, true})
        for (const bool transparent : {false, true}) {
          if (transparent && (type & PNG_COLOR_MASK_ALPHA) != 0) continue;
          expect_image({.type = type, .bits = bits, .interlaced = interlaced, .transparent = transparent});
        }
}

std::string chunk(const std::string& kind, const std::string& data) {
  std::string out(4, '\0');
  for (std::size_t i = 0; i < 4; ++i) out[i] = static_cast<char>(data.size() >> (24 - 8 * i));
  return out + kind + data + "????";  // correct_checksums() fills in the rest
}

// As Pillow and torchvision do: the first image of an animation is decoded, also if it is not a part of it, and the
// orientation tag has no effect.
TEST(Png, AnimationAndOrientationDoNotChangeTheImage) {
  const std::string still = small_png(kHeight, kWidth, 1), other = small_png(kHeight, kWidth, 2);
  const auto number = [](unsigned n) { return std::string{0, 0, 0, static_cast<char>(n)}; };
  const auto control = [&](unsigned n) {
    return chunk("fcTL",
                 number(n) + number(kWidth) + number(kHeight) + std::string(8, '\0') + std::string("\0\1\0\2\0\0", 6));
  };
  const std::size_t data = still.find("IDAT") - 4, end = still.find("IEND") - 4;
  const std::size_t other_data = other.find("IDAT") + 4, other_end = other.find("IEND") - 8;
  const std::string frame = chunk("fdAT", number(2) + other.substr(other_data, other_end - other_data));
  const std::string exif = chunk("eXIf", std::string("MM\0*\0\0\0\10\0\1\1\22\0\3\0\0\0\1\0\6\0\0\0\0\0\0", 26));
  PngDecoder decoder;
  std::vector<std::uint8_t> expected, pixels;
  ASSERT_TRUE(decode(decoder, still, 3, expected)) << decoder.reason();
  for (const bool is_part_of_it : {true, false}) {
    std::string animated = still.substr(0, data) + exif + chunk("acTL", number(is_part_of_it ? 2 : 1) + number(0)) +
                           (is_part_of_it ? control(0) : "") + still.substr(data, end - data) + control(1) + frame +
                           still.substr(end);
    std::vector<std::uint8_t> bytes(animated.begin(), animated.end());
    correct_checksums(bytes);
    animated.assign(bytes.begin(), bytes.end());
    ASSERT_TRUE(decode(decoder, animated, 3, pixels)) << decoder.reason();
    EXPECT_EQ(pixels, expected);
  }
}

// Every byte of the file is covered by a checksum, or is part of the length of a chunk or of the signature.
TEST(Png, ReportsEveryDamageAndDecodesTheNextImage) {
  const std::string good =
      encode_png(kHeight, kWidth, {.text = "a comment"}, [](int y, int x, int c) { return sample(y, x, c, 8); });
  PngDecoder decoder;
  std::vector<std::uint8_t> pixels, whole;
  ASSERT_TRUE(decode(decoder, good, 3, whole));
  for (std::size_t n = 8; n < good.size(); ++n) {
    EXPECT_FALSE(decode(decoder, good.substr(0, n), 3, pixels)) << n << " bytes";
    EXPECT_FALSE(decoder.reason().empty());
  }
  for (std::size_t i = 8; i < good.size(); ++i) {
    std::string bad = good;
    bad[i] = static_cast<char>(bad[i] ^ 0x10);
    EXPECT_FALSE(decode(decoder, bad, 3, pixels)) << "byte " << i;
  }
  ASSERT_TRUE(decode(decoder, good, 3, pixels));
  EXPECT_EQ(pixels, whole);
}

// They are rejected by their header, before memory is allocated for the pixels.
TEST(Png, RejectsImagesThatAreTooLarge) {
  PngDecoder decoder;
  std::vector<std::uint8_t> pixels;
  for (const auto& [height, width] : {std::pair{20000, 20000}, std::pair{1, 70000}, std::pair{70000, 1}}) {
    // The header, and a chunk for the pixels that contains none.
    const std::string png = encode_png(height, width, {}, {}) + std::string("\0\0\0\0IDAT\x35\xaf\x06\x1e", 12);
    EXPECT_FALSE(decode(decoder, png, 3, pixels));
    EXPECT_NE(decoder.reason().find("pixels exceed the limit"), std::string::npos) << decoder.reason();
  }
}

TEST(Image, TheFormatIsDecidedByTheBytes) {
  ImageDecoder decoder;
  for (int channels : {1, 3}) {
    const std::string png = small_png(16, 24, 1), jpeg = smooth_jpeg(16, 24, 1);
    for (const std::string& file : {png, jpeg}) {
      ASSERT_TRUE(decoder.open(bytes_of(file))) << decoder.reason();
      EXPECT_EQ(decoder.format(), file == png ? ImageFormat::png : ImageFormat::jpeg);
      EXPECT_FALSE(decoder.is_grey());
      ASSERT_TRUE(decoder.start(4, channels));
      EXPECT_EQ(decoder.decoded_eighths(), file == png ? 8 : 4);
      EXPECT_EQ(decoder.decoded_height(), file == png ? 16 : 8);
      std::vector<std::uint8_t> pixels(
          static_cast<std::size_t>(decoder.decoded_height() * decoder.decoded_width() * channels));
      EXPECT_TRUE(decoder.read_pixels(pixels)) << decoder.reason();
    }
  }
  for (const std::string& grey : {smooth_jpeg(16, 16, 1, {.channels = 1}), small_png(16, 16, 1, 1)})
    EXPECT_TRUE(decoder.open(bytes_of(grey)) && decoder.is_grey());
  for (const auto& [bytes, reason] : {std::pair<std::string, std::string>{"", "it is empty (0 bytes)"},
                                      {"GIF89a", "it is neither a JPEG nor a PNG file"},
                                      {"\x89PNG", "it is neither a JPEG nor a PNG file"},
                                      {"\xff\xd8", "Premature end of JPEG file"}}) {
    EXPECT_FALSE(decoder.open(bytes_of(bytes)));
    EXPECT_EQ(decoder.reason(), reason);
  }
}

// The brightness of a colour image, whatever colour space the file uses.
TEST(Image, ColourJpegBecomesGrey) {
  ImageDecoder decoder;
  for (const int stored : {3, 4}) {
    const std::string jpeg = smooth_jpeg(24, 24, 2, {.channels = stored, .quality = 100});
    ASSERT_TRUE(decoder.open(bytes_of(jpeg)));
    std::vector<std::uint8_t> rgb(24 * 24 * 3), grey(24 * 24);
    ASSERT_TRUE(decoder.start(8, 3) && decoder.read_pixels(rgb)) << decoder.reason();
    ASSERT_TRUE(decoder.open(bytes_of(jpeg)));
    ASSERT_TRUE(decoder.start(8, 1) && decoder.read_pixels(grey)) << decoder.reason();
    double distance = 0;
    for (std::size_t i = 0; i < grey.size(); ++i)
      distance += std::abs(grey[i] - (0.299 * rgb[3 * i] + 0.587 * rgb[3 * i + 1] + 0.114 * rgb[3 * i + 2]));
    EXPECT_LT(distance / 576, 2.0) << stored;  // RGB values are clipped to 0 to 255, brightness is not
  }
}

}  // namespace
}  // namespace lockstep::data
