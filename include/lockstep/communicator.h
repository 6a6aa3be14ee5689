// What ranks exchange.
//
// Communicator: sums over all ranks, inside the step. One static schedule of all-reduces is issued in the same order
// on every rank, from one thread. The memory it works on is taken once from allocate(), so that ranks of a node can
// map each other's and sum in place.
// World: everything before, between and after steps: small, blocking, host memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "lockstep/backend.h"
#include "lockstep/dtype.h"
#include "lockstep/event.h"

namespace lockstep {

struct Slice {
  void* data = nullptr;  // inside Communicator::allocate()'s memory
  std::size_t n_elements = 0;
  DType dtype = DType::fp32;  // fp32 or fp64
  DType wire = DType::fp32;   // of an fp32 slice between nodes: fp32, or bf16 or fp16, to which each node's sum and the
                              // sum of all are rounded; they are added in fp32
};

/// The order of a sum: a binary tree over sources in turn, written as what a machine with a stack does. Source s is
/// pushed, then merges[s] times the two on top are replaced by lower + upper. {0, 1, 0, 2} is (0 + 1) + (2 + 3).
struct SumOrder {
  std::vector<int> merges;
  int size() const { return static_cast<int>(merges.size()); }
};

class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual std::string describe() const = 0;  // "shared memory, 2 ranks on 1 node"
  virtual int rank() const = 0;
  virtual int size() const = 0;

  /// Zero-filled, 4096-byte aligned. Collective over all ranks; every rank asks for the same size.
  virtual std::unique_ptr<Memory> allocate(std::size_t size_bytes, const std::string& purpose) = 0;

  /// Replaces `slice` by its sum over all ranks, the same bits on every rank and in every run with as many ranks;
  /// where the communicator was made with a SumOrder, by that tree and no other.
  /// Starts when `ready` is done; `done` is begun before the call returns and done afterwards. Issued from one
  /// thread, in the same order with the same sizes on every rank. `label` names it in messages ("bucket 3 of 9").
  virtual void all_reduce_async(const Slice& slice, const Event& ready, Event& done, const std::string& label) = 0;
  /// Whether a sum is work of streams alone, which a CapturedGraph may hold; else each takes a call.
  virtual bool is_repeatable() const { return false; }
  /// An event that fits `done`.
  virtual std::unique_ptr<Event> make_event() = 0;
};

class World {
 public:
  virtual ~World() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual int local_rank() const = 0;  // on this node
  virtual int local_size() const = 0;
  virtual int node() const = 0;  // 0 .. n_nodes-1, in the order of each node's lowest rank
  virtual int n_nodes() const = 0;
  virtual const std::string& host() const = 0;

  // Collective, called by one thread of each rank in the same order. None spins; each throws Error when a rank is lost.
  virtual void barrier() = 0;
  virtual void broadcast(std::span<std::byte> data, int root) = 0;
  /// Every rank's bytes, in the order of ranks, on every rank; lengths may differ.
  virtual std::vector<std::string> all_gather(std::string_view mine) = 0;
  /// True on every rank if true on any; a rank that failed says so here before all of them throw.
  virtual bool any(bool mine) = 0;

  /// True for the first rank of the node that asks: what all see alike, that another rank has died, is said once.
  virtual bool is_first_to_speak() = 0;
  /// Ends all ranks of the job with this exit status; does not return.
  [[noreturn]] virtual void abort(int exit_status) = 0;
};

}  // namespace lockstep
