#include "train/weight_gather.h"

#include <fmt/format.h>

#include <algorithm>
#include <ranges>

namespace lockstep::train {

WeightGather::WeightGather(const StepPlan& plan, Backend& backend, Communicator& communicator, void* arena, DType dtype,
                           const std::string& what)
    : communicator_(communicator), ready_(backend.make_event()) {
  for (const comm::Bucket& bucket : std::views::reverse(plan.buckets())) {
    if (!bucket.is_sharded()) continue;
    parts_.push_back({.begin = bucket.begin,
                      .end = bucket.end(),
                      .exchange = {.collective = Collective::all_gather,
                                   .slice = {.data = static_cast<std::byte*>(arena) + bucket.begin * size_bytes(dtype),
                                             .n_elements = bucket.n_elements,
                                             .dtype = dtype},
                                   .bounds = bucket.shard_bounds},
                      .done = communicator.make_event(),
                      .label = fmt::format("{}, {} to {}", what, bucket.first_name, bucket.last_name)});
    end_ = std::max(end_, bucket.end());
  }
}

WeightGather::~WeightGather() {
  bool is_pending = false;
  for (Part& part : parts_) {
    if (part.is_pending) (void)part.done.release();
    is_pending = is_pending || part.is_pending;
  }
  if (is_pending) (void)ready_.release();
}

void WeightGather::start(Stream& stream) {
  ready_->record(stream);
  for (Part& part : parts_) {
    communicator_.exchange_async(part.exchange, *ready_, *part.done, part.label);
    part.is_pending = true;
  }
}

void WeightGather::wait_for(std::size_t begin, std::size_t n_elements, Stream& stream) {
  for (Part& part : parts_) {
    if (!part.is_pending || part.end <= begin || begin + n_elements <= part.begin) continue;
    stream.wait(*part.done);
    part.is_pending = false;
  }
}

}  // namespace lockstep::train
