// The gradient reducer: buckets of the gradient arena, all-reduced while backward still runs.
//
// Gradients lie in the order in which backward finishes them (DESIGN, decision 4), so a bucket is a contiguous slice.
// A bucket ends at a tensor's border, when it holds at least bucket_bytes or what follows goes otherwise over the wire;
// it starts when its last writer is done.
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
  std::size_t begin = 0, n_elements = 0;  // fp32, of the gradient arena
  DType wire = DType::fp32;               // Slice::wire
  int last_tensor = 0;                    // index of the tensor whose gradient completes it
  std::string first_name, last_name;      // for messages
};

struct GradientTensor {
  std::string name;
  std::size_t begin = 0, n_elements = 0;  // fp32, of the gradient arena, ascending, without holes but padding
  DType wire = DType::fp32;
};

/// Cuts the arena. The batch statistics at its end are simply its last tensors.
std::vector<Bucket> make_buckets(const std::vector<GradientTensor>& tensors, std::size_t bucket_bytes);

class GradientReducer {
 public:
  GradientReducer(Communicator& communicator, Backend& backend, float* gradients, std::vector<Bucket> buckets);

  /// Buckets still in flight (an exception ends the step) keep their events: the communicator works on them.
  ~GradientReducer();
  GradientReducer(const GradientReducer&) = delete;
  GradientReducer& operator=(const GradientReducer&) = delete;

  /// Tensor `index` (in order) is complete on `stream`: starts the bucket that it completes, if any, after `prepare`
  /// has given the stream what is still to be done with it.
  void tensor_done(int index, Stream& stream, const std::function<void(const Bucket&)>& prepare = {});
  /// Makes `stream` wait for all buckets of this step, and for `other`. `slot`, 0 or 1: which of two steps
  /// exposed_seconds() tells of.
  void finish(Stream& stream, int slot = 0, const Event* other = nullptr);
  /// How long the stream of that finish() had nothing to do but wait for buckets: exposed communication. Blocks the
  /// caller until the stream has done with it.
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
