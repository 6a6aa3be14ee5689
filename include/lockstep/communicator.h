// Communication between ranks.
//
// Communicator: collectives over all ranks, inside the step. They follow one static schedule: every rank issues the
// same collectives in the same order, from one thread. Their memory is allocated once by allocate(), so that the ranks
// of a node can map each other's memory and sum in place. World: everything that is exchanged before, between and after
// steps. Its calls are small and blocking, and work on host memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lockstep/backend.h"
#include "lockstep/dtype.h"
#include "lockstep/element_range.h"
#include "lockstep/error.h"
#include "lockstep/event.h"

namespace lockstep {

struct Slice {
  void* data = nullptr;  // inside memory of Communicator::allocate()
  std::size_t n_elements = 0;
  DType dtype = DType::fp32;  // must be fp32, fp64 or bf16 for a sum; bf16 is rounded after each addition
  // The type in which an fp32 slice travels between nodes: fp32, bf16 or fp16. The sum of each node and the total are
  // rounded to it; additions are always in fp32.
  DType wire = DType::fp32;
};

enum class Collective : std::uint8_t {
  all_reduce,      // the slice becomes its sum over all ranks, on every rank
  reduce_scatter,  // only this rank's shard becomes the sum; the rest of the slice is undefined
  all_gather,      // every rank's shard is copied to all ranks
};

/// The order of the additions in a sum: a binary tree over the sources, written as a program for a stack machine. For
/// each source s in turn, s is pushed, and then the top two entries are replaced by lower + upper, merges[s] times.
/// {0, 1, 0, 2} means (0 + 1) + (2 + 3).
struct SumOrder {
  std::vector<int> merges;
  /// Each rank contributes one source per round (SumRound), so that the sums of nodes are of no use.
  bool has_rounds = false;
  int size() const { return static_cast<int>(merges.size()); }
};

/// A part of the program of a SumOrder: its next sources, one of each rank. The owner of an element keeps the entries
/// of the stack from round to round. The rank that owns a shard is its owner in a reduce-scatter; in an all-reduce,
/// elements have owners too, which are the same in every round. All values are in the slice's type.
struct SumRound {
  std::span<const int> merges{};  // of each rank's source; empty: the exchange is not a round
  /// The stack, the lowest entry first, in memory of the backend: those that earlier rounds have left, which are
  /// replaced by those that this one leaves. An entry has the elements of this rank's shard; of the whole slice in an
  /// all-reduce, which uses only those that this rank owns.
  void* open = nullptr;
  std::size_t stride = 0;  // elements from one entry to the next
  int n_before = 0;        // entries that earlier rounds have left

  bool exists() const { return !merges.empty(); }
  int n_after() const {
    int n = n_before;
    for (const int merged : merges) n += 1 - merged;
    return n;
  }
};

struct Exchange {
  Collective collective = Collective::all_reduce;
  Slice slice{};  // of all ranks' shards, one after the other, which are equal; of any length for an all-reduce
  /// An all-reduce leaves the sums of the lowest entry in the slice: after the last round, the total. After a round of
  /// a reduce-scatter, the slice is undefined.
  SumRound round{};
};

class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual std::string describe() const = 0;  // "shared memory, 2 ranks on 1 node"
  virtual int rank() const = 0;
  virtual int size() const = 0;

  /// Zero-filled, 4096-byte aligned. Collective over all ranks; every rank requests the same size.
  virtual std::unique_ptr<Memory> allocate(std::size_t size_bytes, const std::string& purpose) = 0;

  /// The result of a sum has the same bits on every rank, with either collective, and in every run with the same number
  /// of ranks. A communicator that was made with a SumOrder adds in exactly that order.
  /// The exchange starts when `ready` is done. `done` is marked as pending before the call returns and completes with
  /// the exchange, when no other rank accesses this rank's memory any more. Every rank issues the same exchanges in the
  /// same order, from one thread. `label` names this one in messages ("bucket 3 of 9").
  virtual void exchange_async(const Exchange& exchange, const Event& ready, Event& done, const std::string& label) = 0;
  void all_reduce_async(const Slice& slice, const Event& ready, Event& done, const std::string& label) {
    exchange_async({.slice = slice}, ready, done, label);
  }
  /// True if an exchange is nothing but work on streams, so that it can be captured in a graph. Otherwise the host must
  /// call exchange_async() in every step.
  virtual bool is_capturable() const { return false; }
  /// Throws the reason if the job is lost. A captured step calls no other function of the communicator, so the host
  /// calls this when it begins a step, and after it has waited for results: the sums of an aborted exchange are wrong.
  /// Once this throws, no exchange uses the memory of allocate() any more.
  virtual void check() {}
  /// The time that this rank's exchanges have taken so far. Each is measured from the moment at which all ranks of the
  /// node had begun it. For the rank that the others waited for longest in a step, this is therefore the time of the
  /// exchanges alone. No value if the time is not measured.
  virtual std::optional<double> exchange_seconds() const { return std::nullopt; }
  /// An event that can be passed as `done`.
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

  // Collectives, called by one thread of each rank in the same order. They sleep while they wait, and throw Error when
  // a rank is lost.
  virtual void barrier() = 0;
  /// Copies `data` of `root` to all ranks. Throws Error (internal) if its size is not the same on every rank.
  virtual void broadcast(std::span<std::byte> data, int root) = 0;
  /// `text` becomes that of rank 0.
  void broadcast_text(std::string& text) {
    std::uint64_t length = text.size();
    broadcast(std::as_writable_bytes(std::span(&length, 1)), 0);
    text.resize(length);
    broadcast(std::as_writable_bytes(std::span(text)), 0);
  }
  /// Returns every rank's bytes, in rank order, on every rank. Lengths may differ.
  virtual std::vector<std::string> all_gather(std::string_view mine) = 0;
  /// Returns true on every rank if `mine` is true on any of them. A rank that failed can report it this way, so that
  /// all ranks throw together.
  virtual bool any(bool mine) = 0;

  /// Zero-filled host memory that all ranks of this node map. Collective; every rank requests the same size. Throws
  /// comm_shared_memory.
  virtual std::unique_ptr<Memory> share_in_node(std::size_t size_bytes, const std::string& purpose) = 0;

  /// From now on, waiting longer than this for another rank ends the job: comm.watchdog_seconds at first. A world of
  /// one rank waits for nobody.
  virtual void set_watchdog_seconds(double /*seconds*/) {}

  /// True for the first rank of the node that asks. When all ranks see the same failure, such as the death of a peer,
  /// only this one prints it.
  virtual bool is_first_to_report() = 0;
  /// Why the job is lost, for example because a rank died. Other errors of this rank are consequences of that.
  virtual std::optional<Error> cause_of_loss() { return std::nullopt; }
  /// Ends all ranks of the job with this exit status; does not return.
  [[noreturn]] virtual void abort(int exit_status) = 0;
};

}  // namespace lockstep
