// Tree-ordered sums of the cpu backend: the same bits as the reference, which adds one pair after another.
#include <gtest/gtest.h>

#include "lockstep/error.h"
#include "lockstep/ops/ordered_sum.h"
#include "test/reference/backend.h"
#include "test/support/device.h"
#include "test/support/tensor.h"

namespace lockstep::test {
namespace {

enum class Target { separate, value, outermost };

template <typename T>
std::vector<T> run(Backend& backend, DType dtype, std::int64_t n_elements, int n_open, Target where) {
  Device device(backend);
  const auto values = [&](int seed) {
    const std::vector<float> normal = random_normal(n_elements, static_cast<std::uint32_t>(seed));
    return device.upload(std::vector<T>(normal.begin(), normal.end()));
  };
  T* value = values(100);
  std::vector<T*> sums;
  for (int i = 0; i < n_open; ++i) sums.push_back(values(i));
  const std::vector<const void*> open(sums.begin(), sums.end());
  const auto n = static_cast<std::size_t>(n_elements);
  T* target = where == Target::separate ? device.garbage<T>(n) : where == Target::value ? value : sums.at(0);
  const auto op = backend.make(OrderedSumDescription{.dtype = dtype});
  // In two calls, as for buckets.
  for (const auto& [begin, end] : {std::pair(std::size_t{0}, n / 3), std::pair(n / 3, n)})
    op->apply({.value = value, .open = open, .target = target, .begin = begin, .n_elements = end - begin},
              device.op_memory(op->memory_requirements()), device.stream());
  return device.download(target, n);
}

template <typename T>
void agrees(DType dtype) {
  reference::ReferenceBackend reference;
  for (const std::int64_t n : {1, 17, 1025, 70001})
    for (const int n_open : {0, 1, 3})
      for (const Target where : {Target::separate, Target::value, Target::outermost}) {
        if (where == Target::outermost && n_open == 0) continue;
        const std::vector<T> expected = run<T>(reference, dtype, n, n_open, Target::separate);
        for (auto& [name, backend] : tested_backends())
          EXPECT_EQ(run<T>(*backend, dtype, n, n_open, where), expected)
              << name << ", " << n << " elements, " << n_open << " open sums";
      }
}

TEST(OrderedSum, AgreesWithTheReferenceToTheBit) {
  agrees<float>(DType::fp32);
  agrees<double>(DType::fp64);
}

TEST(OrderedSum, AddsFromTheInnermostOutwards) {
  for (auto& [name, backend] : tested_backends()) {
    Device device(*backend);
    // 1 + (-1e8 + 1e8) is 1; (1 - 1e8) + 1e8 is 0 in fp32.
    float* value = device.upload(std::vector<float>{1e8f});
    const std::vector<const void*> open{device.upload(std::vector<float>{1}), device.upload(std::vector<float>{-1e8f})};
    const auto op = backend->make(OrderedSumDescription{});
    op->apply({.value = value, .open = open, .target = value, .n_elements = 1}, {}, device.stream());
    EXPECT_EQ(device.download(value, 1), std::vector<float>{1}) << name;
  }
}

/// 256 + 1 is rounded to 256, so that the order of the additions shows; 1 + 1 is not.
TEST(OrderedSum, RoundsToBf16AfterEachAddition) {
  for (auto& [name, backend] : tested_backends()) {
    if (!computes_in(*backend, DType::bf16)) continue;
    Device device(*backend);
    const auto values = [&](float value) { return device.upload_as(DType::bf16, std::vector<float>(11, value)); };
    const auto op = backend->make(OrderedSumDescription{.dtype = DType::bf16});
    for (const auto& [value, expected] : {std::pair(256.0f, 256.0f), std::pair(1.0f, 258.0f)}) {
      void* const target = values(value);
      const std::vector<const void*> open{values(value == 1 ? 256.0f : 1.0f), values(1)};
      op->apply({.value = target, .open = open, .target = target, .n_elements = 11}, {}, device.stream());
      EXPECT_EQ(device.download_as(DType::bf16, target, 11), std::vector<float>(11, expected)) << name;
    }
  }
}

TEST(OrderedSum, RejectsOtherTypes) {
  for (auto& [name, backend] : tested_backends())
    EXPECT_THROW(backend->make(OrderedSumDescription{.dtype = DType::int32}), Error);
}

}  // namespace
}  // namespace lockstep::test
