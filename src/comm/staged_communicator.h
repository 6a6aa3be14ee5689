// Sums device memory by staging it through host memory, for machines where NCCL cannot be used.
//
// A thread of its own processes the requests in order. It waits for `ready`, cuts the slice into chunks, and passes
// each chunk to the host communicator in a slot of a small pinned ring buffer: chunk i+1 is copied to the host and
// chunk i-1 back to the device while chunk i is summed. With shards, a chunk has equal parts of all ranks' shards, of
// which only those are copied that are needed on the other side. Only the contracts of Backend and Communicator are
// used.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <thread>

#include "comm/communicator_memory.h"
#include "lockstep/communicator.h"

namespace lockstep::comm {

class StagedCommunicator final : public Communicator {
 public:
  static constexpr std::size_t kSlots = 4;
  static constexpr std::size_t kChunkBytes = std::size_t{4} << 20;
  static constexpr std::size_t kRingBytes = kSlots * kChunkBytes;

  /// Collective. `inner` is the communicator for host memory.
  StagedCommunicator(std::unique_ptr<Communicator> inner, World& world, Backend& backend);
  ~StagedCommunicator() override;

  std::string describe() const override;
  int rank() const override { return world_.rank(); }
  int size() const override { return world_.size(); }
  std::unique_ptr<Memory> allocate(std::size_t size_bytes, const std::string& purpose) override {
    return memory_.allocate(world_, backend_, size_bytes, purpose);
  }
  void exchange_async(const Exchange& exchange, const Event& ready, Event& done, const std::string& label) override;
  /// A host event: a stream that waits for it blocks its caller.
  std::unique_ptr<Event> make_event() override { return std::make_unique<HostEvent>(); }

 private:
  class Worker;

  World& world_;
  Backend& backend_;
  CommunicatorMemory memory_;
  std::shared_ptr<Worker> worker_;
  std::thread thread_;
};

}  // namespace lockstep::comm
