// The gradient reducer: all-reduces buckets of the gradient arena while the backward pass is still running.
//
// Gradients are stored in the order in which the backward pass finishes them (DESIGN, decision 4), so a bucket is a
// contiguous slice. It ends at the boundary of a tensor, as soon as it holds at least bucket_bytes or the next tensor
// has another wire type. Its all-reduce starts when its last writer is done.
#pragma once

#include <array>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/communicator.h"

namespace lockstep::comm {

struct Bucket {
  std::size_t begin = 0, n_elements = 0;  // fp32 elements of the gradient arena
  DType wire = DType::fp32;               // Slice::wire
  int last_tensor = 0;                    // index of the tensor whose gradient completes it
  std::string first_name, last_name;      // for messages
};

struct GradientTensor {
  std::string name;
  std::size_t begin = 0,
              n_elements = 0;  // fp32 elements of the gradient arena; ascending, with only padding between tensors
  DType wire = DType::fp32;
};

/// Cuts the arena into buckets. The batch statistics at its end count as tensors too.
std::vector<Bucket> make_buckets(const std::vector<GradientTensor>& tensors, std::size_t bucket_bytes);

class GradientReducer {
 public:
  GradientReducer(Communicator& communicator, Backend& backend, float* gradients, std::vector<Bucket> buckets);

  /// If buckets are in flight, because an exception ends the step, their events are not destroyed: the communicator
  /// still uses them.
  ~GradientReducer();
  GradientReducer(const GradientReducer&) = delete;
  GradientReducer& operator=(const GradientReducer&) = delete;

  /// The work queued on `stream` so far completes tensor `index`; tensors complete in order. If it is the last one of a
  /// bucket, `prepare` may queue more work on that bucket, and then its all-reduce is started.
  void tensor_done(int index, Stream& stream, const std::function<void(const Bucket&)>& prepare = {});
  /// Makes `stream` wait for all buckets of this step and for `other`. The wait is timed in `slot` (0 or 1), so that
  /// one step can be timed while the time of the previous one is read.
  void finish(Stream& stream, int slot = 0, const Event* other = nullptr);
  /// The exposed communication: how long the stream of the last finish() with this slot only waited. Blocks the caller
  /// until that wait is over.
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
  std::array<Wait, 2> waits_;
  int next_ = 0;
};

}  // namespace lockstep::comm
