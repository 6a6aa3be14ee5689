// The sum of a slice of device memory over ranks, in an order of ours: the fixed tree of reproducible runs, or what
// goes over the wire in bf16 and is added in fp32. Each chunk of the slice is cut into a part a rank; every rank sends
// each other one its part, adds its own part of all in that order with the backend's OrderedSum, and sends the sum to all:
// the same bits on every rank and in every run. Traffic: each rank sends and receives 2 (n-1)/n of the slice, as with a
// ring. All work is given to one stream; the host waits for nothing.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "comm/sum.h"
#include "lockstep/communicator.h"

namespace lockstep::comm {

struct Transfer {
  enum class Direction : std::uint8_t { send, receive };
  Direction direction = Direction::send;
  int peer = 0;
  void* data = nullptr;
  std::size_t size_bytes = 0;
};

/// What moves bytes between the devices of ranks.
class Peers {
 public:
  virtual ~Peers() = default;
  /// Gives all of them to `stream`, to go on beside each other; none is empty. Between two ranks sends and receives
  /// meet in their order.
  virtual void transfer(std::span<const Transfer> transfers, Stream& stream) = 0;
};

class DeviceExchange {
 public:
  static constexpr std::size_t kChunkBytes = std::size_t{16} << 20;

  /// `order`: over ranks. `narrowest_wire`: of the slices that will come.
  DeviceExchange(Backend& backend, int rank, const SumOrder& order, DType narrowest_wire);

  /// What it takes of the device's memory.
  static std::size_t buffer_bytes(int n_ranks, DType narrowest_wire);

  /// In place; fp32 or fp64, Slice::wire of fp32: what every rank sends is rounded to it, and the sum.
  void all_reduce(const Slice& slice, Peers& peers, Stream& stream);

 private:
  struct Chunk {
    std::byte* data = nullptr;
    std::size_t n_elements = 0;
    DType dtype = DType::fp32, wire = DType::fp32;
    bool is_narrow() const { return wire != dtype; }
  };

  Part part(const Chunk& chunk, int rank) const;
  /// Where a rank's part lies in the chunk, and what of it is sent and received: there, or rounded beside it.
  std::byte* values(const Chunk& chunk, int rank) const;
  std::byte* wire_data(const Chunk& chunk, int rank) const;
  std::byte* incoming(const Chunk& chunk, int rank) const;

  void scatter(const Chunk& chunk, Peers& peers, Stream& stream);
  void sum_mine(const Chunk& chunk, Stream& stream);
  void gather(const Chunk& chunk, Peers& peers, Stream& stream);
  void narrow(const Chunk& chunk, Part part, Stream& stream);
  void widen(const Chunk& chunk, Part part, Stream& stream);

  const SumOrder order_;
  const int rank_;
  const int n_ranks_;
  std::unique_ptr<OrderedSum> sum_fp32_, sum_fp64_;
  std::unique_ptr<Cast> narrow_, widen_;
  std::unique_ptr<Memory> incoming_;          // (ranks, part): my part of the others' chunks
  std::unique_ptr<Memory> rounded_;           // bf16, a chunk as it goes over the wire
  std::unique_ptr<Memory> rounded_incoming_;  // bf16, of incoming_
  std::vector<Transfer> transfers_;
  std::vector<const void*> open_;  // the stack of the order
};

}  // namespace lockstep::comm
