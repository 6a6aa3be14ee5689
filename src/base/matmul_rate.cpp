#include "base/matmul_rate.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "base/clock.h"
#include "lockstep/bf16.h"
#include "lockstep/communicator.h"
#include "lockstep/fp16.h"
#include "lockstep/ops/matmul.h"

namespace lockstep {
namespace {

constexpr double kSeconds = 0.1;       // time for the measurement
constexpr int kLeast = 20;             // products; on a busy machine most are interrupted, so the shortest one counts
constexpr double kLongEnough = 0.001;  // minimum time of one product in seconds, since starting it takes microseconds
constexpr std::int64_t kSmallest = 512, kGreatest = 8192;

/// A square product of one size, planned and with its memory.
class SquareProduct {
 public:
  SquareProduct(Backend& backend, Precision precision, std::int64_t n)
      : op_(backend.make(MatmulDescription{.rows = n,
                                           .in_features = n,
                                           .out_features = n,
                                           .dtype = storage_type(precision),
                                           .tf32 = precision == Precision::tf32,
                                           .fp8 = precision == Precision::fp8,
                                           .bias = false,
                                           .inference = true})),
        stream_(backend.make_stream()) {
    const auto allocate = [&](std::size_t size_bytes) {
      return backend.allocate(std::max<std::size_t>(size_bytes, 1), "a product whose speed is measured");
    };
    const std::size_t element = size_bytes(storage_type(precision)), matrix = static_cast<std::size_t>(n * n) * element;
    x_ = allocate(matrix);
    weight_ = allocate(op_->weight_layout()->n_elements() * element);
    y_ = allocate(matrix);
    workspace_ = allocate(op_->memory_requirements().forward_workspace_bytes);
    for (Memory* const operand : {x_.get(), weight_.get()})
      fill_random(backend, *operand, storage_type(precision), *stream_);
  }

  void compute() {
    op_->forward({.x = x_->data(), .weight = weight_->data(), .y = y_->data()}, {workspace_->data(), nullptr},
                 *stream_);
    stream_->synchronize();
  }

 private:
  std::unique_ptr<Matmul> op_;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<Memory> x_, weight_, y_, workspace_;
};

}  // namespace

void fill_random(Backend& backend, Memory& d_memory, DType dtype, Stream& stream) {
  constexpr std::size_t kDrawn = std::size_t{1} << 19;  // elements
  const std::size_t element = size_bytes(dtype);
  std::vector<std::byte> drawn(std::min(kDrawn, d_memory.size_bytes() / element) * element);
  std::uint32_t state = 1;
  for (std::size_t at = 0; at < drawn.size(); at += element) {
    state = state * 1664525u + 1013904223u;
    const float value = static_cast<float>(static_cast<std::int32_t>(state)) * 0x1p-31f;
    const std::uint16_t narrow = dtype == DType::bf16 ? to_bf16(value).bits : to_fp16(value).bits;
    std::memcpy(&drawn[at], dtype == DType::fp32 ? static_cast<const void*>(&value) : &narrow, element);
  }
  for (std::size_t at = 0; at < d_memory.size_bytes() && !drawn.empty(); at += drawn.size())
    backend.copy(static_cast<std::byte*>(d_memory.data()) + at, drawn.data(),
                 std::min(drawn.size(), d_memory.size_bytes() - at), stream);
  stream.synchronize();
}

double measure_matmul_rate(Backend& backend, Precision precision) {
  for (std::int64_t n = kSmallest;; n *= 2) {
    SquareProduct product(backend, precision, n);
    const auto compute = [&] { product.compute(); };
    compute();  // the first one touches the memory
    if (shortest_seconds(1, 0, compute) < kLongEnough && n < kGreatest) continue;
    const auto size = static_cast<double>(n);
    return 2 * size * size * size / shortest_seconds(kLeast, kSeconds, compute);
  }
}

double matmul_rate_of_ranks(Backend& backend, Precision precision, World& world) {
  world.all_gather("");  // so that all ranks begin at the same time
  double total = 0;
  for (const std::string& rate : world.all_gather(std::to_string(measure_matmul_rate(backend, precision))))
    total += std::stod(rate);
  return total;
}

}  // namespace lockstep
