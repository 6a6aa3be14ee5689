// The sum of a slice of device memory over ranks, in an order that Lockstep chooses instead of NCCL. It is used for the
// fixed tree of reproducible runs, and for gradients that travel between nodes in bf16 or fp16 but are added in fp32.
//
// The slice is processed in chunks. Each rank owns one shard of a chunk: it receives that shard from all other ranks,
// adds it up in the given order on the device, and sends the total to all. The result has the same bits on every rank
// and in every run. Each rank sends and receives 2 (n-1)/n of the slice, as with a ring all-reduce. In a
// reduce-scatter, a chunk has equal parts of all ranks' shards, and totals stay where they are: a rank sends and
// receives (n-1)/n of the slice.
//
// With 16-bit gradients and the same number of ranks L on each of N nodes, the sum has two levels, so that as little as
// possible travels between nodes. First, the ranks of a node sum a chunk in fp32, each rank its own shard. Then the
// owners of a shard on all nodes exchange it in 16 bits, and send the total to the ranks of their nodes in 16 bits. A
// rank sends 2 (N-1)/N / L of the values to other nodes. All work is queued on one stream, and the host does not wait.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>
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

struct Topology;

class DeviceExchange {
 public:
  static constexpr std::size_t kChunkBytes = std::size_t{16} << 20;

  /// Who sums, and what is sent.
  struct Plan {
    std::vector<std::vector<int>> nodes;  // ranks
    SumOrder order;                       // over ranks
    bool is_fixed = false;                // every sum has exactly that order
    DType narrowest_wire = DType::fp32;   // the narrowest Slice::wire that will be used

    int n_ranks() const;
    /// Slices with a narrow wire type are summed in two levels.
    bool has_levels() const;
  };
  /// Allocates device memory: the size in bytes, and the purpose.
  using Allocate = std::function<std::unique_ptr<Memory>(std::size_t, const std::string&)>;
  /// `allocate` is called for the buffers that `network` sends and receives.
  DeviceExchange(Backend& backend, int rank, Plan plan, const Allocate& allocate);

  /// The size of the device memory that a DeviceExchange allocates.
  static std::size_t buffer_bytes(const Plan& plan);

  // Both sum fp32, fp64 or bf16 in place. What ranks send, and the total of an fp32 slice, are rounded to Slice::wire,
  // which is fp32 in a round.
  void all_reduce(const Slice& slice, PointToPoint& network, Stream& stream, const SumRound& round = {});
  /// Equal shards, one per rank.
  void reduce_scatter(const Slice& slice, PointToPoint& network, Stream& stream, const SumRound& round = {});

 private:
  struct Chunk {
    std::byte* data = nullptr;
    std::byte* rounded = nullptr;  // its values in the wire type
    std::size_t n_elements = 0;    // in a reduce-scatter: of each rank's shard
    DType dtype = DType::fp32, wire = DType::fp32;
    std::size_t stride = 0;  // in a reduce-scatter: elements from one rank's shard to the next
    SumRound round{};        // its open sums begin with the chunk
    bool is_narrow() const { return wire != dtype; }
  };
  /// Ranks that sum a chunk. In an all-reduce, member i owns shard i of it.
  struct Group {
    std::vector<int> ranks;
    int mine = 0;  // this rank
    SumOrder order;
    std::vector<std::vector<int>> owned{};  // in a reduce-scatter: the ranks whose shards a member sums
    int size() const { return static_cast<int>(ranks.size()); }
  };

  /// Elements of a chunk that one member owns.
  struct Piece {
    ElementRange range{};    // of the chunk's data
    std::size_t place = 0;   // in its rounded copy
    std::size_t before = 0;  // elements of the member's earlier pieces
  };

  static Group ranks_by_themselves(std::vector<int> ranks, int rank, SumOrder order);
  static ElementRange shard(const Chunk& chunk, const Group& group, int member);
  template <typename Call>
  static void for_pieces(const Chunk& chunk, const Group& group, int member, const Call& call);
  static std::size_t n_owned(const Chunk& chunk, const Group& group, int member);
  /// What is sent and received: the values themselves, or their rounded copy.
  static std::byte* wire_data(const Chunk& chunk, const Piece& piece);
  static Chunk part_of(const Chunk& chunk, ElementRange range);

  bool has_levels(const Chunk& chunk) const;
  Chunk chunk_of(const Slice& slice, std::size_t begin, std::size_t n_elements, const SumRound& round) const;
  static Chunk unrounded(Chunk chunk);
  void sum_in_levels(const Chunk& chunk, PointToPoint& network, Stream& stream);
  /// Each member gets the sum of what it owns.
  void reduce(const Chunk& chunk, const Group& group, PointToPoint& network, Stream& stream);
  void scatter(const Chunk& chunk, const Group& group, PointToPoint& network, Stream& stream);
  void sum_mine(const Chunk& chunk, const Group& group, Stream& stream);
  std::byte* value_of(const Chunk& chunk, const Group& group, const Piece& mine, int source) const;
  OrderedSum& sum_of(DType dtype) const;
  void gather(const Chunk& chunk, const Group& group, PointToPoint& network, Stream& stream);
  void narrow(const Chunk& chunk, const Piece& piece, Stream& stream);
  void widen(const Chunk& chunk, const Piece& piece, Stream& stream);

  const Plan plan_;
  Group all_, of_node_, of_shard_;  // all ranks; those of this node; those of all nodes that own the same shard
  std::unique_ptr<OrderedSum> sum_fp32_, sum_fp64_, sum_bf16_;
  std::unique_ptr<Cast> narrow_, widen_;
  std::unique_ptr<Memory> incoming_;          // (ranks, what this one owns) of the other ranks' chunks
  std::unique_ptr<Memory> rounded_;           // a chunk in the wire type
  std::unique_ptr<Memory> rounded_incoming_;  // incoming_ in the wire type
  std::vector<Transfer> transfers_;
  std::vector<const void*> open_;  // the stack of SumOrder
};

/// The plan for ranks whose gradients are on devices.
DeviceExchange::Plan device_exchange_plan(const Topology& topology);

}  // namespace lockstep::comm
