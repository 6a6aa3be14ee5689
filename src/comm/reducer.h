// The gradient reducer: all-reduces buckets of the gradient arena while the backward pass is still running.
//
// Gradients are stored in the order in which the backward pass finishes them (DESIGN, decision 4), so a bucket is a
// contiguous slice. It ends at the boundary of a tensor, as soon as it holds at least bucket_bytes or the next tensor
// has another wire type. A tensor of at least two buckets' bytes, such as an embedding, is divided into several. The
// all-reduce of a bucket starts when its last writer is done.
//
// Where the optimizer is sharded (train.shard), a bucket is reduce-scattered instead, and each rank gets the sum of its
// shard. Shards, and the parts of a tensor, end at multiples of kGranule elements of a tensor.
#pragma once

#include <array>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/communicator.h"
#include "lockstep/ops/parameter_segment.h"

namespace lockstep::comm {

struct Bucket {
  std::size_t begin = 0, n_elements = 0;  // fp32 elements of the gradient arena
  DType wire = DType::fp32;               // Slice::wire
  int last_tensor = 0;                    // index of the tensor whose gradient completes it
  std::string first_name, last_name;      // for messages
  /// Exchange::bounds of its shards; empty: every rank gets the whole sum.
  std::vector<std::size_t> shard_bounds{};

  std::size_t end() const { return begin + n_elements; }
  bool is_sharded() const { return !shard_bounds.empty(); }
  /// Elements of the arena.
  ElementRange shard(int rank) const {
    const ElementRange shard = range_between(shard_bounds, rank);
    return {begin + shard.begin, shard.n_elements};
  }
};

struct GradientTensor {
  std::string name;
  std::size_t begin = 0,
              n_elements = 0;  // fp32 elements of the gradient arena; ascending, with only padding between tensors
  DType wire = DType::fp32;
  bool can_be_sharded = false;
};

inline constexpr std::size_t kGranule = 4 * kTileElements;

/// Cuts the arena into buckets. The batch statistics at its end count as tensors too. `n_shards`: the number of shards
/// of each bucket that can be sharded; 1: no bucket is sharded.
std::vector<Bucket> make_buckets(const std::vector<GradientTensor>& tensors, std::size_t bucket_bytes,
                                 int n_shards = 1);

class GradientReducer {
 public:
  GradientReducer(Communicator& communicator, Backend& backend, float* gradients, std::vector<Bucket> buckets);

  /// If buckets are in flight, because an exception ends the step, their events are not destroyed: the communicator
  /// still uses them.
  ~GradientReducer();
  GradientReducer(const GradientReducer&) = delete;
  GradientReducer& operator=(const GradientReducer&) = delete;

  /// The work queued on `stream` so far completes tensor `index`; tensors complete in order. If it is the last tensor
  /// of one or more buckets, `prepare` may queue more work on each of them before its exchange is started.
  void tensor_done(int index, Stream& stream, const std::function<void(const Bucket&)>& prepare = {});
  /// Makes `stream` wait for all buckets of this step and for `other`. After each wait, `summed` may queue work on the
  /// bucket of that index, which runs while later ones are summed. The waits are timed in `slot` (0 or 1), so that one
  /// step can be timed while the time of the previous one is read.
  void finish(Stream& stream, int slot = 0, const Event* other = nullptr,
              const std::function<void(std::size_t bucket)>& summed = {});
  /// After finish(): makes `stream` wait for another exchange of the step, timed like those of the buckets. Once a
  /// step.
  void wait_for(const Event& done, Stream& stream, int slot);
  /// The exposed communication: how long the stream of the last finish() with this slot did nothing but wait. Blocks
  /// the caller until that wait is over.
  double exposed_seconds(int slot = 0) const;

  const std::vector<Bucket>& buckets() const { return buckets_; }

 private:
  struct InFlight {
    std::unique_ptr<Event> ready, done;
    std::string label;
  };
  struct Wait {
    std::unique_ptr<Event> begin, end;
  };
  Communicator& communicator_;
  float* gradients_;
  std::vector<Bucket> buckets_;
  std::vector<InFlight> in_flight_;
  static void wait(const Wait& wait, const Event& done, Stream& stream);

  std::array<std::vector<Wait>, 2> waits_;  // by slot: for each bucket, for `other`, and in wait_for()
  std::array<std::size_t, 2> n_waits_{};    // of the last step
  int next_ = 0;
};

}  // namespace lockstep::comm
