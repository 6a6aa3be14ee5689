// Image input: crops and flips are exactly the draws that lockstep/ops/image_input.h promises; values are compared with
// the reference.
#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "lockstep/ops/image_input.h"
#include "lockstep/philox.h"
#include "test/reference/backend.h"
#include "test/reference/image_input.h"
#include "test/support/compare.h"
#include "test/support/device.h"
#include "test/support/tensor.h"

namespace lockstep::test {
namespace {

struct Case {
  Shape x;
  int crop_padding;
  bool flip;
};

const Case kCases[] = {{{3, 32, 32, 3}, 4, true}, {{2, 7, 5, 3}, 2, true},   {{1, 5, 9, 1}, 0, true},
                       {{4, 6, 6, 3}, 1, false},  {{90, 16, 8, 2}, 3, true}, {{2, 4, 4, 3}, 0, false},
                       {{1, 3, 3, 5}, 4, true}};

ImageInputDescription describe(const Case& c) {
  ImageInputDescription d;
  d.x = c.x;
  d.crop_padding = c.crop_padding;
  d.flip = c.flip;
  d.seed = 11;
  for (std::int64_t i = 0; i < c.x[3]; ++i) {
    d.mean.push_back(0.45f + 0.03f * static_cast<float>(i));
    d.stddev.push_back(0.2f + 0.02f * static_cast<float>(i));
  }
  return d;
}

std::vector<std::uint8_t> random_images(const Shape& shape) {
  std::vector<std::uint8_t> images;
  for (float x : random_uniform(shape.n_elements(), 1, 0, 256)) images.push_back(static_cast<std::uint8_t>(x));
  return images;
}

std::vector<float> run(Backend& backend, const ImageInputDescription& d, const std::vector<std::uint8_t>& images,
                       const std::vector<std::uint32_t>& sample_ids, std::uint32_t epoch) {
  Device device(backend);
  const auto op = backend.make(d);
  StepScalars scalars;
  scalars.epoch = epoch;
  ImageInput::Forward args;
  args.images = device.upload(images);
  args.sample_ids = device.upload(sample_ids);
  args.scalars = device.upload(std::vector<StepScalars>{scalars});
  args.y = device.garbage_as(d.dtype, images.size());
  op->forward(args, device.op_memory(op->memory_requirements()), device.stream());
  return device.download_as(d.dtype, args.y, images.size());
}

std::vector<std::uint32_t> sample_ids(const Shape& shape) {
  std::vector<std::uint32_t> ids;
  for (std::int64_t n = 0; n < shape[0]; ++n) ids.push_back(static_cast<std::uint32_t>(1000003 * n + 17));
  return ids;
}

TEST(ImageInput, AgreesWithTheReference) {
  reference::ReferenceBackend reference;
  for (const Case& c : kCases)
    for (std::uint32_t epoch : {0u, 5u}) {
      const ImageInputDescription d = describe(c);
      const auto images = random_images(c.x);
      const auto expected = run(reference, d, images, sample_ids(c.x), epoch);
      for (auto& [name, backend] : tested_backends()) {
        const auto actual = run(*backend, d, images, sample_ids(c.x), epoch);
        // Three roundings, or four if computed as a * x + b with rounded a and b, of terms up to (1 + mean) / stddev =
        // 7.5.
        for (std::size_t i = 0; i < actual.size(); ++i)
          ASSERT_NEAR(actual[i], expected[i], 4 * kRoundoff * 7.5) << name << ", x " << c.x.text() << ", " << i;
      }
    }
}

/// With 16 bits, the value is the same, rounded once more.
TEST(ImageInput, InBf16AndFp16) {
  for (const Case& c : kCases)
    for (const DType dtype : {DType::bf16, DType::fp16}) {
      ImageInputDescription d = describe(c);
      const auto images = random_images(c.x);
      for (auto& [name, backend] : tested_backends()) {
        if (dtype == DType::fp16 && backend->name() == "cpu") continue;
        d.dtype = DType::fp32;
        const auto expected = rounded_to(dtype, run(*backend, d, images, sample_ids(c.x), 5));
        d.dtype = dtype;
        EXPECT_EQ(run(*backend, d, images, sample_ids(c.x), 5), expected) << name << ", x " << c.x.text();
      }
    }
}

/// With mean 0 and standard deviation 1/255, the output is the byte itself. Each pixel contains its own position, and
/// its new position must follow from Philox, whose use is written out again here.
TEST(ImageInput, CropsAndFlipsFollowTheDraws) {
  constexpr std::int64_t kSize = 15;  // 225 positions: every byte is different, and 0 is padding
  constexpr std::uint32_t kSeed = 3;
  constexpr int kPadding = 4;
  ImageInputDescription d;
  d.x = {40, kSize, kSize, 1};
  d.mean = {0.0f};
  d.stddev = {1.0f / 255.0f};
  d.crop_padding = kPadding;
  d.flip = true;
  d.seed = kSeed;
  std::vector<std::uint8_t> images;
  for (std::int64_t i = 0; i < d.x.n_elements(); ++i)
    images.push_back(static_cast<std::uint8_t>(1 + i % (kSize * kSize)));
  const auto ids = sample_ids(d.x);
  reference::ReferenceBackend reference;
  std::vector<std::pair<std::string, Backend*>> backends{{"reference", &reference}};
  for (auto& [name, backend] : tested_backends()) backends.emplace_back(name, backend.get());
  for (auto& [name, backend] : backends)
    for (std::uint32_t epoch : {0u, 1u, 77u}) {
      const std::vector<float> y = run(*backend, d, images, ids, epoch);
      std::set<int> rows, columns, flips;
      std::size_t i = 0;
      for (std::int64_t n = 0; n < d.x[0]; ++n) {
        const std::uint32_t sample = ids[static_cast<std::size_t>(n)];
        const auto crop = philox4x32({0, 0, sample, epoch}, {kSeed, 3});
        const auto flip = philox4x32({0, 0, sample, epoch}, {kSeed, 4});
        const int row = static_cast<int>((std::uint64_t{crop[0]} * 9) >> 32) - kPadding;
        const int column = static_cast<int>((std::uint64_t{crop[1]} * 9) >> 32) - kPadding;
        const bool flipped = flip[0] % 2 == 1;
        rows.insert(row);
        columns.insert(column);
        flips.insert(flipped);
        for (std::int64_t h = 0; h < kSize; ++h)
          for (std::int64_t w = 0; w < kSize; ++w, ++i) {
            const std::int64_t from_h = h + row;
            const std::int64_t from_w = (flipped ? kSize - 1 - w : w) + column;
            const bool padding = from_h < 0 || from_h >= kSize || from_w < 0 || from_w >= kSize;
            ASSERT_EQ(std::lround(y[i]), padding ? 0 : 1 + from_h * kSize + from_w)
                << name << ", epoch " << epoch << ", sample " << sample << ", row " << h << ", column " << w;
          }
      }
      // 40 samples cover nearly all of the 9 offsets and both directions.
      EXPECT_GE(rows.size(), 7u);
      EXPECT_GE(columns.size(), 7u);
      EXPECT_EQ(flips.size(), 2u);
    }
}

/// A sample does not depend on its position in a batch, nor on the size of the batch.
TEST(ImageInput, DependsOnTheSampleAlone) {
  ImageInputDescription d = describe(kCases[0]);
  const auto images = random_images(d.x);
  const std::vector<std::uint32_t> ids{5, 9, 2};
  const std::size_t size = images.size() / 3;
  for (auto& [name, backend] : tested_backends()) {
    const std::vector<float> together = run(*backend, d, images, ids, 4);
    for (std::size_t n = 0; n < 3; ++n) {
      ImageInputDescription alone = d;
      alone.x = {1, d.x[1], d.x[2], d.x[3]};
      const auto begin = static_cast<std::ptrdiff_t>(n * size), end = static_cast<std::ptrdiff_t>((n + 1) * size);
      EXPECT_EQ(run(*backend, alone, {images.begin() + begin, images.begin() + end}, {ids[n]}, 4),
                std::vector<float>(together.begin() + begin, together.begin() + end))
          << name;
    }
  }
}

}  // namespace
}  // namespace lockstep::test
