// The hash that compares replicas: equal for equal bits, different after any change.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "lockstep/ops/hash.h"
#include "test/reference/backend.h"
#include "test/support/device.h"
#include "test/support/tensor.h"

namespace lockstep::test {
namespace {

std::uint64_t run(Backend& backend, const std::vector<float>& data, std::size_t size_bytes) {
  HashDescription d;
  d.size_bytes = size_bytes;
  Device device(backend);
  const auto op = backend.make(d);
  Hash::Apply args;
  args.data = device.upload(data);
  args.hash = device.garbage<std::uint64_t>(1);
  op->apply(args, device.op_memory(op->memory_requirements()), device.stream());
  return device.download(args.hash, 1)[0];
}

/// The sum of mixed words as in kernels/cuda/hash.cu, computed word by word.
std::uint64_t sum_of_mixed_words(const std::vector<float>& data, std::size_t size_bytes) {
  constexpr std::uint64_t kGolden = 0x9E3779B97F4A7C15u;
  const auto mix = [](std::uint64_t x) {
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return x ^ (x >> 31);
  };
  const auto* bytes = reinterpret_cast<const unsigned char*>(data.data());
  std::uint64_t sum = size_bytes * kGolden;
  for (std::size_t i = 0; 8 * i < size_bytes; ++i) {
    std::uint64_t word = 0;
    std::memcpy(&word, bytes + 8 * i, std::min<std::size_t>(8, size_bytes - 8 * i));
    sum += mix(word + (i + 1) * kGolden);
  }
  return mix(sum);
}

/// On the cpu, the hash is the xxh3 of the memory for any number of threads; the sizes are near xxh3's internal limits
/// (16, 128, 240, 1024 bytes).
TEST(Hash, AgreesWithTheReference) {
  reference::ReferenceBackend reference;
  const std::vector<float> data = random_normal(300000, 1);
  for (std::size_t size_bytes : {4u, 16u, 20u, 128u, 240u, 244u, 1024u, 1028u, 4099u, 1200000u})
    for (auto& [name, backend] : tested_backends())
      EXPECT_EQ(run(*backend, data, size_bytes),
                backend->name() == "cuda" ? sum_of_mixed_words(data, size_bytes) : run(reference, data, size_bytes))
          << name << ", " << size_bytes;
}

/// The same bytes at other positions, and different numbers of zeros, have different hashes.
TEST(Hash, DependsOnPositionsAndSize) {
  std::vector<float> data = random_normal(5000, 1);
  for (auto& [name, backend] : tested_backends()) {
    const std::uint64_t before = run(*backend, data, data.size() * sizeof(float));
    std::vector<float> swapped = data;
    std::swap_ranges(swapped.begin(), swapped.begin() + 4, swapped.begin() + 2000);
    EXPECT_NE(run(*backend, swapped, data.size() * sizeof(float)), before) << name;
    const std::vector<float> zeros(64);
    EXPECT_NE(run(*backend, zeros, 248), run(*backend, zeros, 256)) << name;
  }
}

TEST(Hash, DependsOnEveryBit) {
  const std::vector<float> data = random_normal(5000, 1);
  for (auto& [name, backend] : tested_backends()) {
    const std::uint64_t before = run(*backend, data, data.size() * sizeof(float));
    EXPECT_EQ(run(*backend, data, data.size() * sizeof(float)), before) << name;
    for (std::size_t i : {std::size_t{0}, std::size_t{2500}, std::size_t{4999}}) {
      std::vector<float> other = data;
      std::uint32_t bits;
      std::memcpy(&bits, &other[i], sizeof bits);
      bits ^= 1;
      std::memcpy(&other[i], &bits, sizeof bits);
      EXPECT_NE(run(*backend, other, data.size() * sizeof(float)), before) << name << ", element " << i;
    }
  }
}

}  // namespace
}  // namespace lockstep::test
