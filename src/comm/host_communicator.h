// The communicator for host memory. It sums in shared memory within a node, and with MPI between the leaders of nodes.
//
// The memory of an allocate() call is one shared file per node, which each of its R ranks maps as a whole: R regions at
// equal distances, one per rank. In an all-reduce on one node, each rank waits until all have reached it, sums its 1/R
// of the slice over all regions, in the order of ranks or in a given tree order, and writes the total to all regions.
// The all-reduce is complete when all ranks have done so. Each rank reads and writes the slice once. In a
// reduce-scatter, a rank writes the total of its shard to its own region only; in an all-gather, it copies the shards
// of the others to its region. What a rank has read or written of another's region is unmapped again, so that it does
// not count as memory of both.
//   On several nodes, the slice is cut into chunks that are pipelined: each rank sums its part of a chunk into the
// leader's region, the leaders exchange the chunk (node_exchange.h), and every rank copies the total from its leader.
// In a reduce-scatter, a chunk has equal parts of all ranks' shards, and each total goes only to the node and the rank
// that own it. In an all-gather, the leaders send each other the shards of their nodes' ranks. An order that has rounds
// is for the sources of single ranks: every rank is then a node of its own, unless there is only one node.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "comm/communication_thread.h"
#include "comm/node_exchange.h"
#include "comm/sum.h"
#include "comm/topology.h"
#include "lockstep/communicator.h"
#include "lockstep/trace.h"

namespace lockstep::comm {

class HostCommunicator final : public Communicator, private Channel {
 public:
  HostCommunicator(CommunicationThread& thread, World& world, Topology topology);
  ~HostCommunicator() override;

  std::string describe() const override;
  int rank() const override { return world_.rank(); }
  int size() const override { return world_.size(); }
  std::unique_ptr<Memory> allocate(std::size_t size_bytes, const std::string& purpose) override;
  void exchange_async(const Exchange& exchange, const Event& ready, Event& done, const std::string& label) override;
  std::unique_ptr<Event> make_event() override { return std::make_unique<HostEvent>(); }
  std::optional<double> exchange_seconds() const override { return exchange_seconds_.load(); }

 private:
  static constexpr std::size_t kQueueLength = 256;

  class Region;  // the Memory that allocate() returns

  struct Request {
    Exchange exchange{};
    std::byte* first_region = nullptr;  // of local rank 0
    std::size_t stride_bytes = 0;       // from one rank's region to the next
    std::size_t offset_bytes = 0;       // of the slice in each region
    const Event* ready = nullptr;
    HostEvent* done = nullptr;
    char label[kLabelBytes] = {};

    std::byte* region(int local_rank) const {
      return first_region + static_cast<std::size_t>(local_rank) * stride_bytes;
    }
    std::byte* at(int local_rank, std::size_t element) const {
      return region(local_rank) + offset_bytes + element * size_bytes(dtype());
    }
    DType dtype() const { return exchange.slice.dtype; }
    std::size_t n_elements() const { return exchange.slice.n_elements; }
    DType wire() const { return exchange.slice.wire; }
    bool is(Collective collective) const { return exchange.collective == collective; }
  };

  Listener cancel(const std::exception_ptr& reason) override;

  // What follows runs on the communication thread.
  Coroutine run_on_one_node();
  Coroutine run_between_nodes();
  bool has_request() const { return head_.load(std::memory_order_acquire) != tail_.load(std::memory_order_acquire); }
  Request& front() { return queue_[head_.load(std::memory_order_relaxed) % kQueueLength]; }
  void finish(Request& request);
  void trace_arrival();
  ChannelProgress& progress(int local_rank) const;
  ChannelProgress& my_progress() const { return progress(topology_.local_rank); }
  /// True if the counter of every local rank is at least `minimum`.
  bool all_reached(std::atomic<std::uint64_t> ChannelProgress::*counter, std::uint64_t minimum) const;
  /// Sums a range over the local ranks, into the regions of `n_targets` of them, from `first_target` on.
  void sum_local(const Request& request, ElementRange range, int first_target, int n_targets);
  /// Copies elements of one local rank's region to another's.
  void copy_local(const Request& request, ElementRange range, int from, int to);
  /// Unmaps the pages of a range in the regions of the other local ranks, until they are accessed again.
  void release_peers(const Request& request, ElementRange range) const;
  int rank_at(int local_rank) const;
  /// The leaders' part of an all-gather: starts to send the shards of this node's ranks, and to receive the others'.
  void start_gather(const Request& request);
  ElementRange shard(const Request& request, int rank) const { return equal_shard(request.n_elements(), size(), rank); }
  /// Elements of a chunk: in a reduce-scatter, of a rank's shard.
  std::size_t chunk_length(const Request& request) const;
  std::size_t n_chunks(const Request& request) const;
  /// The elements of a sum's chunk, or those of a rank's shard in a reduce-scatter.
  ElementRange chunk(const Request& request, std::size_t index, int rank = 0) const;
  void sum_my_part(const Request& request, std::size_t index);
  /// Between nodes.
  void start_sum(const Request& request, std::size_t index);
  /// The leader's part of run_between_nodes: advances every chunk that can proceed. True when all chunks are gathered.
  bool advance_chunks(const Request& request);

  trace::Row* const trace_row_ = trace::add_row("communication");
  trace::Clock::time_point arrived_;  // when all ranks of the node had reached the current exchange
  std::atomic<double> exchange_seconds_{0};
  CommunicationThread& thread_;
  World& world_;
  const Topology topology_;
  std::vector<int> leaders_;
  const std::size_t chunk_bytes_;
  /// Outlives the communicator as long as there are regions.
  struct Registry {
    std::vector<const Region*> regions;
    const HostCommunicator* communicator = nullptr;  // null once it is destroyed
    bool was_left_busy = false;
    /// Sums are in flight: the communication thread, MPI and peers may still write to the memory.
    bool is_busy() const { return communicator != nullptr ? communicator->has_request() : was_left_busy; }
  };
  std::shared_ptr<Registry> registry_;

  std::array<Request, kQueueLength> queue_;  // filled by the issuing thread, emptied by the communication thread
  std::atomic<std::uint64_t> head_{0}, tail_{0};

  std::vector<NodeExchange> exchanges_;     // leaders only
  std::vector<NodeExchange::Part> parts_;   // leaders only; those of a chunk
  std::vector<MpiRequest> shard_messages_;  // leaders only; those of the current all-gather
  struct {
    std::size_t n_summed = 0, n_started = 0, n_finished = 0;  // chunks of the current request
    std::uint64_t reduced_before = 0;
  } pipeline_;
  std::vector<const std::byte*> sources_;
  std::vector<std::byte*> targets_;
};

}  // namespace lockstep::comm
