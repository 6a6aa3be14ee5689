// The communicator of host memory: sums in shared memory inside a node, by MPI between the leaders of nodes.
//
// All memory of allocate() is one shared file a node, which each of its ranks maps whole: R regions, one a rank, at
// equal offsets. An all-reduce on one node of R ranks: each waits until all have come, sums its 1/R of the slice in
// the order of ranks, or by a tree that is given, and writes the sum into all R regions; it is over when all have done.
// Traffic: each rank reads and writes the slice once.
//   On several nodes a slice is cut into chunks that follow each other as in a pipe: each rank sums its part of a chunk
// into the leader's region, leaders exchange it (exchange.h), every rank copies the result from its leader.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "comm/communication_thread.h"
#include "comm/exchange.h"
#include "comm/sum.h"
#include "comm/topology.h"
#include "lockstep/communicator.h"
#include "lockstep/trace.h"

namespace lockstep::comm {

class HostCommunicator final : public Communicator, private Lane {
 public:
  HostCommunicator(CommunicationThread& thread, World& world, Topology topology);
  ~HostCommunicator() override;

  std::string describe() const override;
  int rank() const override;
  int size() const override;
  std::unique_ptr<Memory> allocate(std::size_t size_bytes, const std::string& purpose) override;
  void all_reduce_async(const Slice& slice, const Event& ready, Event& done, const std::string& label) override;
  std::unique_ptr<Event> make_event() override { return std::make_unique<HostEvent>(); }

 private:
  static constexpr std::size_t kQueueLength = 256;

  class Region;  // what allocate() returned

  struct Request {
    std::byte* slice_of_leader = nullptr;  // in the region of local rank 0 ...
    std::size_t stride_bytes = 0;          // ... and so far on to the next rank's
    std::size_t n_elements = 0;
    DType dtype = DType::fp32, wire = DType::fp32;
    const Event* ready = nullptr;
    HostEvent* done = nullptr;
    char label[kLabelBytes] = {};

    std::byte* at(int local_rank, std::size_t element) const {
      return slice_of_leader + static_cast<std::size_t>(local_rank) * stride_bytes + element * size_bytes(dtype);
    }
  };

  Told give_up(const std::exception_ptr& reason) override;
  std::unique_ptr<Region> map_region(std::size_t size_bytes, const std::string& purpose);

  // On the communication thread.
  Routine run_on_one_node();
  Routine run_between_nodes();
  bool has_request() const { return head_.load(std::memory_order_acquire) != tail_.load(std::memory_order_acquire); }
  Request& front() { return queue_[head_.load(std::memory_order_relaxed) % kQueueLength]; }
  void come_to(const Request& request);
  void finish(Request& request);
  void note_all_came() const;
  LaneCell& cell(int local_rank) const;
  LaneCell& mine() const { return cell(topology_.local_rank); }
  bool all_have(std::atomic<std::uint64_t> LaneCell::*counter, std::uint64_t wanted) const;
  /// The sum over local ranks of elements [begin, begin + n_elements), into the regions of the first `n_targets` ranks.
  void sum_local(const Request& request, std::size_t begin, std::size_t n_elements, int n_targets);
  Part chunk(const Request& request, std::size_t index) const;
  std::size_t n_chunks(const Request& request) const;
  void sum_my_part_of_chunk(const Request& request, std::size_t index);
  /// A leader's part of run_between_nodes: goes on with whatever can; true when all chunks are gathered.
  bool lead(const Request& request);

  trace::Row* const trace_row_ = trace::add_row("communication");
  CommunicationThread& thread_;
  World& world_;
  const Topology topology_;
  std::vector<int> leaders_;
  const std::size_t chunk_bytes_;
  struct Registry {
    std::vector<const Region*> regions;
    const HostCommunicator* communicator = nullptr;  // null once it is gone
    bool was_left_busy = false;
    /// Sums are in flight: the communication thread, MPI and peers may still write to the memory.
    bool is_busy() const { return communicator != nullptr ? communicator->has_request() : was_left_busy; }
  };
  std::shared_ptr<Registry> registry_;

  std::array<Request, kQueueLength> queue_;  // one thread puts in, the communication thread takes out
  std::atomic<std::uint64_t> head_{0}, tail_{0};

  std::vector<Exchange> exchanges_;  // of a leader
  struct {
    std::size_t summed = 0, started = 0, finished = 0;  // chunks
    std::uint64_t reduced_before = 0;
  } progress_;
  std::vector<const std::byte*> sources_;
  std::vector<std::byte*> targets_;
};

}  // namespace lockstep::comm
