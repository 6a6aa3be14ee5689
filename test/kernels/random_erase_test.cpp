// Random erasing of the backends, compared with the reference and with torchvision's RandomErasing with the same random
// numbers (test/golden/augment.json).
#include "test/reference/random_erase.h"

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "lockstep/ops/random_erase.h"
#include "test/reference/backend.h"
#include "test/support/compare.h"
#include "test/support/device.h"
#include "test/support/tensor.h"

namespace lockstep::test {
namespace {

const Shape kCases[] = {{3, 32, 32, 3}, {2, 7, 5, 3}, {1, 5, 9, 1}, {4, 6, 6, 3}, {90, 16, 8, 2}, {3, 1, 1, 5}};

std::vector<std::uint32_t> sample_ids(const Shape& shape) {
  std::vector<std::uint32_t> ids;
  for (std::int64_t n = 0; n < shape[0]; ++n) ids.push_back(static_cast<std::uint32_t>(1000003 * n + 17));
  return ids;
}

std::vector<float> run(Backend& backend, const Shape& shape, const std::vector<float>& x, double probability,
                       std::uint32_t epoch, DType dtype = DType::fp32) {
  Device device(backend);
  const auto op =
      backend.make(RandomEraseDescription{.x = shape, .dtype = dtype, .probability = probability, .seed = 11});
  StepScalars scalars;
  scalars.epoch = epoch;
  RandomErase::Forward args;
  args.x = device.upload_as(dtype, x);
  args.sample_ids = device.upload(sample_ids(shape));
  args.scalars = device.upload(std::vector<StepScalars>{scalars});
  args.y = device.garbage_as(dtype, x.size());
  op->forward(args, device.op_memory(op->memory_requirements()), device.stream());
  return device.download_as(dtype, args.y, x.size());
}

/// The comparison is exact: nothing is computed.
TEST(RandomErase, AgreesWithTheReference) {
  reference::ReferenceBackend reference;
  for (const Shape& shape : kCases)
    for (const double probability : {0.1, 0.5, 1.0})
      for (std::uint32_t epoch = 0; epoch < 4; ++epoch) {
        const std::vector<float> x = random_normal(shape.n_elements(), 1);
        const std::vector<float> expected = run(reference, shape, x, probability, epoch);
        for (auto& [name, backend] : tested_backends()) {
          EXPECT_EQ(run(*backend, shape, x, probability, epoch), expected) << name << ", " << shape.text();
          const DType dtype = backend->name() == "cpu" ? DType::bf16 : DType::fp16;
          EXPECT_EQ(run(*backend, shape, rounded_to(dtype, x), probability, epoch, dtype), rounded_to(dtype, expected))
              << name << ", " << shape.text();
        }
      }
}

/// What is erased: as many images as the probability says, and 2 to 33 % of each, as far as whole pixels allow.
TEST(RandomErase, ErasesAsManyAndAsMuchAsItSays) {
  constexpr std::int64_t kImages = 400, kSize = 20;
  const Shape shape{kImages, kSize, kSize, 1};
  const std::vector<float> ones(static_cast<std::size_t>(shape.n_elements()), 1.0f);
  for (auto& [name, backend] : tested_backends()) {
    const std::vector<float> y = run(*backend, shape, ones, 0.25, 2);
    int n_erased = 0;
    for (std::int64_t n = 0; n < kImages; ++n) {
      const auto begin = y.begin() + static_cast<std::ptrdiff_t>(n * kSize * kSize);
      const auto n_zeros = std::count(begin, begin + kSize * kSize, 0.0f);
      if (n_zeros == 0) continue;
      ++n_erased;
      EXPECT_GE(n_zeros, 4) << name;
      EXPECT_LE(n_zeros, 150) << name;
    }
    EXPECT_GT(n_erased, 65) << name;  // 100 with a standard deviation of 9
    EXPECT_LT(n_erased, 135) << name;
  }
}

/// Whole calls of RandomErasing: whether an image is erased, the position and size of the rectangle, that it becomes 0,
/// which try takes effect, and that an image is unchanged after ten failed tries.
TEST(RandomErase, ErasesWhatTorchvisionErases) {
  const nlohmann::json all = nlohmann::json::parse(std::ifstream("test/golden/augment.json")).at("erased");
  int n_erased = 0, n_left = 0, n_later_tries = 0, n_without = 0;
  for (const nlohmann::json& c : all) {
    const Shape shape{std::ssize(c["boxes"]), c["height"], c["width"], 3};
    const std::vector<float> x = random_normal(shape.n_elements(), 1);
    std::vector<float> expected = x;
    for (std::int64_t n = 0; n < shape[0]; ++n) {
      const int tries = c["tries"][static_cast<std::size_t>(n)];
      const nlohmann::json& box = c["boxes"][static_cast<std::size_t>(n)];
      n_later_tries += !box.is_null() && tries > 1 ? 1 : 0;
      n_without += box.is_null() && tries == 10 ? 1 : 0;
      ++(box.is_null() ? n_left : n_erased);
      if (box.is_null()) continue;
      const std::int64_t top = box[0], left = box[1], height = box[2], width = box[3];
      for (std::int64_t h = top; h < top + height; ++h) {
        const auto row = expected.begin() + ((n * shape[1] + h) * shape[2] + left) * 3;
        std::fill(row, row + width * 3, 0.0f);
      }
    }
    reference::ReferenceBackend reference;
    EXPECT_EQ(run(reference, shape, x, c["probability"], c["epoch"]), expected) << shape.text();
    for (auto& [name, backend] : tested_backends())
      EXPECT_EQ(run(*backend, shape, x, c["probability"], c["epoch"]), expected) << name << ", " << shape.text();
  }
  EXPECT_GE(n_erased, 100);
  EXPECT_GE(n_left, 50);
  EXPECT_GE(n_later_tries, 20) << "tries after the first are covered";
  EXPECT_GE(n_without, 20) << "images that ten tries leave as they are, are covered";
}

TEST(RandomErase, HasTheSizesOfTorchvision) {
  const nlohmann::json all = nlohmann::json::parse(std::ifstream("test/golden/augment.json")).at("erased_sizes");
  EXPECT_EQ(all.size(), 60u);
  for (const nlohmann::json& c : all) {
    const auto size = reference::erased_size(c["u"], c["v"], c["height"], c["width"]);
    EXPECT_EQ(size ? nlohmann::json({size->height, size->width}) : nlohmann::json(), c["size"]) << c.dump();
  }
}

}  // namespace
}  // namespace lockstep::test
