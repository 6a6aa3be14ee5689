// The hash that compares replicas: equal bytes on equal bits, another value for any change.
#include <gtest/gtest.h>

#include <cstring>

#include "test/reference/backend.h"
#include "test/support/device.h"
#include "test/support/tensor.h"

namespace lockstep::test {
namespace {

std::uint64_t run(Backend& backend, const std::vector<float>& data, std::size_t size_bytes) {
  HashDescription d;
  d.size_bytes = size_bytes;
  Device device(backend);
  const auto op = backend.hash(d);
  Hash::Apply args;
  args.data = device.upload(data);
  args.hash = device.garbage<std::uint64_t>(1);
  op->apply(args, device.op_memory(op->needs()), device.stream());
  return device.download(args.hash, 1)[0];
}

/// xxh3 of the memory, whatever the number of threads. Sizes around XXH3's own borders (16, 128, 240, 1024 bytes).
TEST(Hash, AgreesWithTheReference) {
  reference::ReferenceBackend reference;
  const std::vector<float> data = random_normal(300000, 1);
  for (std::size_t size_bytes : {4u, 16u, 20u, 128u, 240u, 244u, 1024u, 1028u, 4099u, 1200000u})
    for (auto& [name, backend] : tested_backends())
      EXPECT_EQ(run(*backend, data, size_bytes), run(reference, data, size_bytes)) << name << ", " << size_bytes;
}

TEST(Hash, SeesEveryBit) {
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
