// The sum of a slice of device memory over ranks, in an order that Lockstep chooses instead of NCCL. It is used for the
// fixed tree of reproducible runs, and for gradients that travel in bf16 or fp16 but are added in fp32.
//
// The slice is processed in chunks. Each rank owns one shard of a chunk: it receives that shard from all other ranks,
// adds it up in the given order on the device, and sends the total to all. The result has the same bits on every rank
// and in every run. Each rank sends and receives 2 (n-1)/n of the slice, as with a ring all-reduce. All work is queued
// on one stream, and the host does not wait.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "comm/sum.h"
#include "lockstep/communicator.h"
#include "lockstep/ops/cast.h"
#include "lockstep/ops/ordered_sum.h"

namespace lockstep::comm {

struct Transfer {
  enum class Direction : std::uint8_t { send, receive };
  Direction direction = Direction::send;
  int peer = 0;
  void* data = nullptr;
  std::size_t size_bytes = 0;
};

/// Moves bytes between the devices of ranks.
class PointToPoint {
 public:
  virtual ~PointToPoint() = default;
  /// Queues all transfers on `stream`; they run concurrently. No transfer is empty. Between two ranks, the n-th send
  /// is matched by the n-th receive.
  virtual void transfer(std::span<const Transfer> transfers, Stream& stream) = 0;
};

class DeviceExchange {
 public:
  static constexpr std::size_t kChunkBytes = std::size_t{16} << 20;

  /// `order`: over ranks. `narrowest_wire`: the narrowest Slice::wire that will be used.
  DeviceExchange(Backend& backend, int rank, const SumOrder& order, DType narrowest_wire);

  /// The device memory that it allocates.
  static std::size_t buffer_bytes(int n_ranks, DType narrowest_wire);

  /// Sums fp32 or fp64 in place. What ranks send, and the total of an fp32 slice, are rounded to Slice::wire.
  void all_reduce(const Slice& slice, PointToPoint& network, Stream& stream);

 private:
  struct Chunk {
    std::byte* data = nullptr;
    std::size_t n_elements = 0;
    DType dtype = DType::fp32, wire = DType::fp32;
    bool is_narrow() const { return wire != dtype; }
  };

  Range shard(const Chunk& chunk, int rank) const;
  /// Where a rank's shard begins in the chunk, and where the data is that is sent and received for it: the values
  /// themselves, or their rounded copy.
  std::byte* values(const Chunk& chunk, int rank) const;
  std::byte* wire_data(const Chunk& chunk, int rank) const;
  std::byte* incoming(const Chunk& chunk, int rank) const;

  void scatter(const Chunk& chunk, PointToPoint& network, Stream& stream);
  void sum_my_shard(const Chunk& chunk, Stream& stream);
  void gather(const Chunk& chunk, PointToPoint& network, Stream& stream);
  void narrow(const Chunk& chunk, Range range, Stream& stream);
  void widen(const Chunk& chunk, Range range, Stream& stream);

  const SumOrder order_;
  const int rank_;
  const int n_ranks_;
  std::unique_ptr<OrderedSum> sum_fp32_, sum_fp64_;
  std::unique_ptr<Cast> narrow_, widen_;
  std::unique_ptr<Memory> incoming_;          // (ranks, shard): my shard of the other ranks' chunks
  std::unique_ptr<Memory> rounded_;           // a chunk in the wire type
  std::unique_ptr<Memory> rounded_incoming_;  // incoming_ in the wire type
  std::vector<Transfer> transfers_;
  std::vector<const void*> open_;  // the stack of SumOrder
};

}  // namespace lockstep::comm
