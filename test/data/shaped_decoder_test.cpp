// From JPEG bytes to the input of a network: decoding only a part, and decoding at a smaller size, compared with
// decoding the whole image first.
#include "data/shaped_decoder.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "test/data/jpeg_files.h"

namespace lockstep::data {
namespace {

std::span<const std::uint8_t> bytes_of(const std::string& text) {
  return {reinterpret_cast<const std::uint8_t*>(text.data()), text.size()};
}

/// Waves of several lengths, edges and some noise: detail at every scale, as in a photograph.
std::string detailed_jpeg(int height, int width, const JpegOptions& options) {
  std::mt19937 random(11);
  std::vector<std::uint8_t> pixels;
  for (int y = 0; y < height; ++y)
    for (int x = 0; x < width; ++x)
      for (int c = 0; c < options.channels; ++c) {
        const double wave = 40 * std::sin(0.02 * x + 0.03 * y + c) + 25 * std::sin(0.21 * x - 0.17 * y);
        const int edge = (x / 37 + y / 29) % 2 * 40, noise = static_cast<int>(random() % 16);
        pixels.push_back(static_cast<std::uint8_t>(std::clamp(90 + static_cast<int>(wave) + edge + noise, 0, 255)));
      }
  return encode_jpeg(pixels, height, width, options);
}

/// The same sample, made from the whole image at full size.
std::vector<std::uint8_t> from_whole(const std::string& jpeg, const ImageShaping& shaping, std::uint32_t sample,
                                     int channels) {
  ImageDecoder decoder;
  EXPECT_TRUE(decoder.open(bytes_of(jpeg)) && decoder.start(8, channels));
  const PixelArea all = decoder.decoded_area();
  std::vector<std::uint8_t> pixels(static_cast<std::size_t>(channels * all.width * all.height));
  EXPECT_TRUE(decoder.read_pixels(pixels));
  Box box = box_of(shaping, all.height, all.width, sample, 0);
  PixelView view{pixels.data(), all.height, all.width, channels, std::ptrdiff_t{channels} * all.width};
  if (shaping.resized_crop) {
    view.bytes += static_cast<int>(box.top) * view.row_bytes + std::ptrdiff_t{channels} * static_cast<int>(box.left);
    view.height = static_cast<int>(box.bottom - box.top);
    view.width = static_cast<int>(box.right - box.left);
    box = {0, 0, box.right - box.left, box.bottom - box.top};
  }
  std::vector<std::uint8_t> out(static_cast<std::size_t>(channels * shaping.image_size * shaping.image_size));
  Resizer().resize(view, box, shaping.image_size, shaping.image_size, out);
  return out;
}

std::vector<std::uint8_t> read_sample(const std::string& jpeg, const ImageShaping& shaping, std::uint32_t sample,
                                      int channels) {
  ShapedDecoder decoder;
  std::vector<std::uint8_t> out(static_cast<std::size_t>(channels * shaping.image_size * shaping.image_size));
  EXPECT_TRUE(decoder.open(bytes_of(jpeg)) && decoder.read_shaped(shaping, sample, 0, channels, out))
      << decoder.reason();
  return out;
}

TEST(ShapedDecoder, DecodingAPartChangesNoBit) {
  for (const JpegOptions& options :
       {JpegOptions{}, JpegOptions{.progressive = true}, JpegOptions{.colour_rows = 1}, JpegOptions{.channels = 1}})
    for (const bool resized_crop : {true, false})
      for (const int channels : {3, 1}) {
        const std::string jpeg = detailed_jpeg(131, 173, options);
        const ImageShaping shaping{.image_size = 64, .resized_crop = resized_crop, .seed = 3};
        for (std::uint32_t sample = 0; sample < (resized_crop ? 40 : 1); ++sample)
          ASSERT_EQ(read_sample(jpeg, shaping, sample, channels), from_whole(jpeg, shaping, sample, channels))
              << "sample " << sample;
      }
}

// The inverse transform to fewer pixels drops frequencies that antialiasing would partly keep. Resizing must still at
// least halve the size, which bounds the difference: here at most 0.75 grey levels on average, and 8 for one value. The
// sizes result in decoding to 1, 2 and 4 eighths.
TEST(ShapedDecoder, DecodingAtASmallerSizeChangesLittle) {
  for (const auto& [height, width, size] : {std::tuple{375, 500, 20}, {375, 500, 40}, {375, 500, 80}})
    for (const bool resized_crop : {true, false}) {
      const std::string jpeg = detailed_jpeg(height, width, {.quality = 90});
      const ImageShaping shaping{.image_size = size, .resized_crop = resized_crop, .seed = 5};
      double sum = 0;
      int greatest = 0, n = 0;
      bool differs = false;
      for (std::uint32_t sample = 0; sample < (resized_crop ? 20 : 1); ++sample) {
        const auto found = read_sample(jpeg, shaping, sample, 3), expected = from_whole(jpeg, shaping, sample, 3);
        differs = differs || found != expected;
        for (std::size_t i = 0; i < found.size(); ++i, ++n) {
          const int difference = std::abs(found[i] - expected[i]);
          sum += difference;
          greatest = std::max(greatest, difference);
        }
      }
      EXPECT_TRUE(differs) << "nothing was decoded at a smaller size";
      EXPECT_LT(sum / n, 1.0) << size << ", resized_crop " << resized_crop;
      EXPECT_LE(greatest, 10) << size << ", resized_crop " << resized_crop;
      const std::string name = std::to_string(size) + (resized_crop ? "_random" : "_centre");
      RecordProperty("mean_of_" + name, std::to_string(sum / n));
      RecordProperty("greatest_of_" + name, greatest);
    }
}

}  // namespace
}  // namespace lockstep::data
