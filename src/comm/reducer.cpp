#include "comm/reducer.h"

#include <exception>
#include <span>
#include <utility>

#include "lockstep/error.h"

namespace lockstep::comm {

std::vector<Bucket> make_buckets(const std::vector<GradientTensor>& tensors, std::size_t bucket_bytes) {
  std::vector<Bucket> buckets;
  bool is_open = false;
  std::size_t end = 0;  // of the previous tensor
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const GradientTensor& tensor = tensors[i];
    require(tensor.begin >= end, ErrorCode::internal, "gradient {} begins at {}, but the previous one ends at {}",
            tensor.name, tensor.begin, end);
    end = tensor.begin + tensor.n_elements;
    if (!is_open || buckets.back().wire != tensor.wire) {
      buckets.emplace_back();
      buckets.back().wire = tensor.wire;
      buckets.back().begin = tensor.begin;
      buckets.back().first_name = tensor.name;
      is_open = true;
    }
    Bucket& bucket = buckets.back();
    bucket.n_elements = end - bucket.begin;
    bucket.last_tensor = static_cast<int>(i);
    bucket.last_name = tensor.name;
    if (bucket.n_elements * sizeof(float) >= bucket_bytes) is_open = false;
  }
  return buckets;
}

GradientReducer::GradientReducer(Communicator& communicator, Backend& backend, float* gradients,
                                 std::vector<Bucket> buckets)
    : communicator_(communicator), gradients_(gradients), buckets_(std::move(buckets)) {
  for (std::size_t i = 0; i < buckets_.size(); ++i) {
    in_flight_.push_back(
        {backend.make_event(), communicator.make_event(), fmt::format("bucket {} of {}", i + 1, buckets_.size())});
  }
  for (Wait& wait : waits_) wait = {backend.make_timing_event(), backend.make_timing_event()};
}

namespace {

bool is_known_to_be_done(const Event& event) noexcept {
  try {
    return event.is_done();
  } catch (const std::exception&) {
    return false;  // the device has failed, or an exception interrupted a graph capture
  }
}

}  // namespace

// After finish() the communicator uses none of them, and next_ is 0. This includes captured steps, whose events cannot
// be queried.
GradientReducer::~GradientReducer() {
  for (InFlight& bucket : std::span(in_flight_).first(static_cast<std::size_t>(next_))) {
    if (is_known_to_be_done(*bucket.done)) continue;
    // Leaked on purpose; the process is about to end.
    (void)bucket.ready.release();
    (void)bucket.done.release();
  }
}

void GradientReducer::tensor_done(int index, Stream& stream, const std::function<void(const Bucket&)>& prepare) {
  const auto i = static_cast<std::size_t>(next_);
  if (i == buckets_.size() || index < buckets_[i].last_tensor) return;
  require(index == buckets_[i].last_tensor, ErrorCode::internal,
          "gradient {} is complete before {}, the last one of {}: gradients are out of order", index,
          buckets_[i].last_name, in_flight_[i].label);
  if (prepare) prepare(buckets_[i]);
  InFlight& bucket = in_flight_[i];
  bucket.ready->record(stream);
  const Slice slice{gradients_ + buckets_[i].begin, buckets_[i].n_elements, DType::fp32, buckets_[i].wire};
  communicator_.all_reduce_async(slice, *bucket.ready, *bucket.done, bucket.label);
  ++next_;
}

void GradientReducer::finish(Stream& stream, int slot, const Event* other) {
  require(static_cast<std::size_t>(next_) == buckets_.size(), ErrorCode::internal,
          "the step waits for its buckets, but only {} of {} were started", next_, buckets_.size());
  const Wait& wait = waits_[static_cast<std::size_t>(slot)];
  wait.begin->record(stream);
  for (const InFlight& bucket : in_flight_) stream.wait(*bucket.done);
  if (other != nullptr) stream.wait(*other);
  wait.end->record(stream);
  next_ = 0;
}

double GradientReducer::exposed_seconds(int slot) const {
  const Wait& wait = waits_[static_cast<std::size_t>(slot)];
  wait.end->synchronize();
  return wait.end->seconds_since(*wait.begin);
}

}  // namespace lockstep::comm
