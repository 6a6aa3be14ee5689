// y = a + b of the backends, compared with the reference bit for bit: a sum and its gradients are rounded once.
#include <gtest/gtest.h>

#include "lockstep/ops/add.h"
#include "test/reference/backend.h"
#include "test/support/device.h"
#include "test/support/tensor.h"

namespace lockstep::test {
namespace {

/// One element; one vector; vectors and a remainder; many elements; enough elements for two threads.
constexpr std::int64_t kSizes[] = {1, 16, 37, 5000, 100003};
constexpr GradientMode kModes[] = {GradientMode::overwrite, GradientMode::accumulate, GradientMode::skip};

struct Outputs {
  std::vector<float> y, da, db;
  bool operator==(const Outputs&) const = default;
};

Outputs run(Backend& backend, const AddDescription& d, GradientMode da_mode, GradientMode db_mode, DType rounded) {
  const auto n = static_cast<std::size_t>(d.n_elements);
  const auto input = [&](std::uint32_t stream) { return rounded_to(rounded, random_normal(d.n_elements, stream)); };
  Device device(backend);
  const auto op = backend.make(d);
  const OpMemory memory = device.op_memory(op->memory_requirements());
  void* const y = device.garbage_as(d.dtype, n);
  op->forward({.a = device.upload_as(d.dtype, input(1)), .b = device.upload_as(d.dtype, input(2)), .y = y}, memory,
              device.stream());
  const auto gradient = [&](GradientMode mode, std::uint32_t stream) {
    return mode == GradientMode::overwrite ? device.garbage_as(d.dtype, n) : device.upload_as(d.dtype, input(stream));
  };
  void* const da = gradient(da_mode, 3);
  void* const db = gradient(db_mode, 4);
  op->backward({.dy = device.upload_as(d.dtype, input(5)), .da = da, .da_mode = da_mode, .db = db, .db_mode = db_mode},
               memory, device.stream());
  return {device.download_as(d.dtype, y, n), device.download_as(d.dtype, da, n), device.download_as(d.dtype, db, n)};
}

TEST(Add, AgreesWithTheReference) {
  reference::ReferenceBackend reference;
  for (const std::int64_t n : kSizes)
    for (const DType dtype : {DType::fp32, DType::bf16, DType::fp16})
      for (const GradientMode da_mode : kModes)
        for (const GradientMode db_mode : kModes) {
          Outputs expected = run(reference, {.n_elements = n}, da_mode, db_mode, dtype);
          for (auto* values : {&expected.y, &expected.da, &expected.db}) *values = rounded_to(dtype, *values);
          for (auto& [name, backend] : tested_backends())
            if (computes_in(*backend, dtype)) {
              EXPECT_EQ(run(*backend, {.n_elements = n, .dtype = dtype}, da_mode, db_mode, dtype), expected)
                  << name << ", " << n << " of " << lockstep::name(dtype) << ", da " << text(da_mode) << ", db "
                  << text(db_mode);
            }
        }
}

/// The placement that a graph may use: the sum at the address of one of its terms, and the gradients at the address of
/// dy.
TEST(Add, InPlace) {
  const std::vector<float> a = random_normal(37, 1), b = random_normal(37, 2);
  for (auto& [name, backend] : tested_backends()) {
    Device device(*backend);
    const auto op = backend->make(AddDescription{.n_elements = 37});
    float* const y = device.upload(a);
    op->forward({.a = y, .b = device.upload(b), .y = y}, {}, device.stream());
    const std::vector<float> sum = device.download(y, 37);
    for (std::size_t i = 0; i < sum.size(); ++i) EXPECT_EQ(sum[i], a[i] + b[i]) << name;
    float* const db = device.upload(b);
    op->backward({.dy = y, .da = y, .db = db, .db_mode = GradientMode::accumulate}, {}, device.stream());
    EXPECT_EQ(device.download(y, 37), sum) << name;
    const std::vector<float> accumulated = device.download(db, 37);
    for (std::size_t i = 0; i < sum.size(); ++i) EXPECT_EQ(accumulated[i], b[i] + sum[i]) << name;
  }
}

TEST(Add, RejectsImpossibleDescriptions) {
  for (auto& [name, backend] : tested_backends()) {
    EXPECT_THROW((void)backend->make(AddDescription{.n_elements = 0}), Error) << name;
    EXPECT_THROW((void)backend->make(AddDescription{.n_elements = 4, .dtype = DType::int32}), Error) << name;
  }
}

}  // namespace
}  // namespace lockstep::test
