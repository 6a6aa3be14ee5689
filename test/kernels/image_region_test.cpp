// Image input of regions of different sizes: compared with torchvision and with the reference in double precision, and
// the same bytes on every backend.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <random>

#include "base/file.h"
#include "data/image_shape.h"
#include "lockstep/error.h"
#include "lockstep/ops/image_input.h"
#include "test/reference/backend.h"
#include "test/support/compare.h"
#include "test/support/device.h"
#include "test/support/tensor.h"

namespace lockstep::test {
namespace {

constexpr int kPlaceBytes = 16;

/// A stored image (height, width, channels).
struct Image {
  int height = 0, width = 0, channels = 3;
  std::vector<std::uint8_t> bytes{};
};

Image random_image(int height, int width, int channels, std::uint32_t seed) {
  std::mt19937 random(seed);
  Image image{height, width, channels};
  for (int i = 0; i < height * width * channels; ++i) image.bytes.push_back(static_cast<std::uint8_t>(random()));
  return image;
}

/// What the loader passes to the op.
struct Batch {
  std::vector<std::uint8_t> pixels;
  std::vector<ImageRegion> regions;
  std::vector<std::int32_t> places;
  RegionLimits limits{.max_height = 1, .max_width = 1, .place_bytes = kPlaceBytes};

  void add(const Image& image, const data::StoredRegion& stored) {
    const ImageRegion& region = stored.region;
    pixels.resize((pixels.size() + kPlaceBytes - 1) / kPlaceBytes * kPlaceBytes, 0xee);
    places.push_back(static_cast<std::int32_t>(pixels.size() / kPlaceBytes));
    regions.push_back(region);
    for (int y = stored.top; y < stored.top + region.rows.n; ++y) {
      const auto row = image.bytes.begin() + (y * image.width + stored.left) * image.channels;
      pixels.insert(pixels.end(), row, row + region.columns.n * image.channels);
    }
    limits.max_height = std::max(limits.max_height, region.rows.n);
    limits.max_width = std::max(limits.max_width, region.columns.n);
  }
};

/// With this description, the values of the output are the bytes.
ImageInputDescription bytes_of(int n, int size, int channels, const RegionLimits& limits) {
  ImageInputDescription d{.x = {n, size, size, channels}, .regions = limits};
  d.mean.assign(static_cast<std::size_t>(channels), 0.0f);
  d.stddev.assign(static_cast<std::size_t>(channels), 1.0f / 255.0f);
  return d;
}

std::vector<float> run(Backend& backend, const ImageInputDescription& d, const Batch& batch) {
  Device device(backend);
  const auto op = backend.make(d);
  std::vector<std::uint32_t> ids;
  for (std::int64_t n = 0; n < d.x[0]; ++n) ids.push_back(static_cast<std::uint32_t>(1000003 * n + 17));
  ImageInput::Forward args;
  args.images = device.upload(batch.pixels);
  args.regions = device.upload(batch.regions);
  args.places = device.upload(batch.places);
  args.sample_ids = device.upload(ids);
  args.scalars = device.upload(std::vector<StepScalars>{StepScalars{}});
  const auto n_values = static_cast<std::size_t>(d.x.n_elements());
  args.y = device.garbage_as(d.dtype, n_values);
  op->forward(args, device.op_memory(op->memory_requirements()), device.stream());
  return device.download_as(d.dtype, args.y, n_values);
}

std::vector<long> rounded(const std::vector<float>& values) {
  std::vector<long> out;
  for (const float value : values) out.push_back(std::lround(value));
  return out;
}

/// A whole image, or a part that is cut out of it.
data::StoredRegion cut(int top, int left, int height, int width, int size) {
  return {.region = {.rows = {.n = height, .length = height, .resized = size},
                     .columns = {.n = width, .length = width, .resized = size}},
          .top = top,
          .left = left};
}

/// The image of test/golden/make_crops.py.
Image golden_image(const nlohmann::json& c) {
  Image image{c["height"], c["width"], c["channels"]};
  for (int y = 0; y < image.height; ++y)
    for (int x = 0; x < image.width; ++x)
      for (int channel = 0; channel < image.channels; ++channel)
        image.bytes.push_back(static_cast<std::uint8_t>((y * 31 + x * 17 + channel * 101 + y * x * 7) % 256));
  return image;
}

TEST(ImageRegion, AgreesWithTorchvision) {
  const auto golden = nlohmann::json::parse(read_file("test/golden/crops.json"));
  ASSERT_EQ(golden["cases"].size(), 14u);
  for (const auto& c : golden["cases"]) {
    const Image image = golden_image(c);
    const int size = c["size"];
    Batch batch;
    if (c.contains("crop")) {
      const auto& crop = c["crop"];
      batch.add(image, cut(crop[0], crop[1], crop[2], crop[3], size));
    } else {
      batch.add(image, data::region_of({.image_size = size, .resize = c["resize"]}, image.height, image.width, 0, 0));
    }
    const std::string hex = c["bytes"];
    for (auto& [name, backend] : tested_backends()) {
      const auto y = rounded(run(*backend, bytes_of(1, size, image.channels, batch.limits), batch));
      ASSERT_EQ(hex.size(), 2 * y.size());
      for (std::size_t i = 0; i < y.size(); ++i)
        ASSERT_LE(std::abs(y[i] - std::stol(hex.substr(2 * i, 2), nullptr, 16)), 1)
            << name << ", " << c.dump().substr(0, 90) << ", value " << i;
    }
  }
}

struct Case {
  int n, channels, size;
  int crop_padding = 0;
  bool flip = false, random_crop = true;
};

// Images of all shapes, some larger and some smaller than the output; outputs that do not fill one tile, and outputs of
// several tiles.
const Case kCases[] = {{5, 3, 7, 2, true},  {3, 1, 9, 0, true},         {4, 3, 33, 3, true},
                       {2, 3, 70, 0, true}, {6, 3, 13, 1, true, false}, {3, 1, 16, 0, false, false},
                       {40, 3, 5, 0, true}, {1, 3, 1, 0, false},        {3, 3, 66, 5, true, false}};

/// Random images, and their regions for one epoch.
Batch random_batch(const Case& c, std::uint32_t seed) {
  std::mt19937 random(seed);
  Batch batch;
  const data::ImageShaping shaping{.image_size = c.size, .resized_crop = c.random_crop, .seed = 3};
  for (int n = 0; n < c.n; ++n) {
    const Image image =
        random_image(1 + static_cast<int>(random() % 90), 1 + static_cast<int>(random() % 90), c.channels, n + seed);
    batch.add(image, data::region_of(shaping, image.height, image.width, static_cast<std::uint32_t>(n), 0));
  }
  return batch;
}

ImageInputDescription describe(const Case& c, const Batch& batch) {
  ImageInputDescription d = bytes_of(c.n, c.size, c.channels, batch.limits);
  d.crop_padding = c.crop_padding;
  d.flip = c.flip;
  d.seed = 11;
  return d;
}

TEST(ImageRegion, AgreesWithTheReferenceAndBetweenBackends) {
  reference::ReferenceBackend reference;
  std::size_t n_values = 0, n_different = 0;
  for (const Case& c : kCases)
    for (const std::uint32_t seed : {1u, 20u}) {
      const Batch batch = random_batch(c, seed);
      const ImageInputDescription d = describe(c, batch);
      const auto expected = rounded(run(reference, d, batch));
      std::vector<long> first;
      for (auto& [name, backend] : tested_backends()) {
        const auto actual = rounded(run(*backend, d, batch));
        // When an image is enlarged, sums of exactly half a level are frequent; 22-bit weights round them up or down.
        for (std::size_t i = 0; i < actual.size(); ++i) {
          ASSERT_LE(std::abs(actual[i] - expected[i]), 1) << name << ", size " << c.size << ", value " << i;
          n_different += actual[i] != expected[i];
        }
        n_values += actual.size();
        if (first.empty()) first = actual;
        ASSERT_EQ(actual, first) << name << ", size " << c.size;
      }
    }
  EXPECT_LT(n_different, n_values / 40);
}

/// Values are normalised as without regions; with 16 bits they are rounded once more.
TEST(ImageRegion, IsNormalised) {
  const Case c = kCases[0];
  const Batch batch = random_batch(c, 4);
  reference::ReferenceBackend reference;
  ImageInputDescription d = describe(c, batch);
  d.mean = {0.4f, 0.5f, 0.6f};
  d.stddev = {0.2f, 0.25f, 0.3f};
  const double level = 1 / (255 * 0.2);
  const auto expected = run(reference, d, batch);
  for (auto& [name, backend] : tested_backends()) {
    d.dtype = DType::fp32;
    const auto actual = run(*backend, d, batch);
    for (std::size_t i = 0; i < actual.size(); ++i) ASSERT_NEAR(actual[i], expected[i], 1.001 * level) << name;
    for (const DType dtype : {DType::bf16, DType::fp16}) {
      if (dtype == DType::fp16 && backend->name() == "cpu") continue;
      d.dtype = dtype;
      EXPECT_EQ(run(*backend, d, batch), rounded_to(dtype, actual)) << name;
    }
  }
}

/// Padding, for a batch with fewer samples than its capacity.
TEST(ImageRegion, NoPixelsGiveAnImageOfZeroBytes) {
  Batch batch;
  batch.add(random_image(9, 9, 3, 1), cut(0, 0, 9, 9, 4));
  batch.regions.emplace_back();
  batch.places.push_back(0);
  for (auto& [name, backend] : tested_backends()) {
    const auto y = rounded(run(*backend, bytes_of(2, 4, 3, batch.limits), batch));
    EXPECT_EQ(std::vector<long>(y.begin() + 48, y.end()), std::vector<long>(48, 0)) << name;
  }
}

/// Thousands of neighbours, all white: the largest possible sums.
TEST(ImageRegion, DoesNotOverflow) {
  Image white{3, 4000, 3};
  white.bytes.assign(std::size_t{3} * 3 * 4000, 255);
  Batch batch;
  batch.add(white, cut(0, 0, 3, 4000, 33));
  for (auto& [name, backend] : tested_backends()) {
    if (backend->name() != "cpu") continue;
    const ImageInputDescription d = bytes_of(1, 33, 3, batch.limits);
    EXPECT_EQ(rounded(run(*backend, d, batch)), std::vector<long>(33 * 33 * 3, 255)) << name;
  }
}

TEST(ImageRegion, TheDeviceRefusesToShrinkTooMuch) {
  for (auto& [name, backend] : tested_backends()) {
    if (backend->name() == "cpu") continue;
    try {
      backend->make(bytes_of(1, 4, 3, {.max_height = 9, .max_width = 4000, .place_bytes = kPlaceBytes}));
      FAIL() << name;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("--short-side"), std::string::npos) << error.what();
    }
  }
}

// The weights are integers on every backend: those of an output add up to one, and its neighbours are those that the
// formula gives in double precision, or have no weight.
TEST(ResizedOutput, HasTheNeighboursOfTheFormula) {
  std::mt19937 random(2);
  for (int i = 0; i < 2000; ++i) {
    const int length = 1 + static_cast<int>(random() % 700), resized = 1 + static_cast<int>(random() % 300);
    const ResizedAxis axis{.n = length, .first = 0, .length = length, .resized = resized, .corner = 0};
    const int output = static_cast<int>(random() % static_cast<unsigned>(resized));
    const ResizedOutput weights(axis, output);
    const double scale = static_cast<double>(length) / resized, support = std::max(1.0, scale);
    const double centre = (output + 0.5) * scale;
    const auto [begin, end] = weights.taps();
    ASSERT_LE(end - begin, max_resize_taps(length, resized));
    double sum = 0, expected = 0;
    for (int k = 0; k < length; ++k) expected += std::max(0.0, 1 - std::abs(k + 0.5 - centre) / support);
    for (int k = 0; k < length; ++k) {
      const double share = std::max(0.0, 1 - std::abs(k + 0.5 - centre) / support) / expected;
      const double weight = k >= begin && k < end ? weights.weight(k, 22) / 4194304.0 : 0;
      ASSERT_NEAR(weight, share, 0.51 / 4194304) << length << " to " << resized << ", output " << output;
      sum += weight;
    }
    ASSERT_NEAR(sum, 1, 1e-4);
  }
}

}  // namespace
}  // namespace lockstep::test
