#include "graph/memory_plan.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "graph/graph.h"
#include "lockstep/error.h"

namespace lockstep::graph {

TensorId MemoryPlan::add(std::string name, std::size_t size_bytes, bool persistent) {
  tensors_.push_back({.name = std::move(name), .size_bytes = size_bytes, .persistent = persistent});
  return static_cast<TensorId>(tensors_.size()) - 1;
}

void MemoryPlan::access(TensorId tensor, int position, Access access) {
  if (tensor == kNoTensor) return;
  TensorInfo& t = tensors_[static_cast<std::size_t>(tensor)];
  const bool is_current = !t.live.empty() && (access != Access::write || t.live.back().last == position);
  if (is_current) {
    t.live.back().last = position;
    return;
  }
  require(access == Access::write || t.persistent, ErrorCode::internal,
          "the tensor {} is read at position {} of the step, before anything has written it", t.name, position);
  t.live.push_back({position, position});
}

bool alive_together(const TensorInfo& a, const TensorInfo& b) {
  if (a.persistent || b.persistent) return true;
  for (const LiveInterval& x : a.live)
    for (const LiveInterval& y : b.live)
      if (x.first <= y.last && y.first <= x.last) return true;
  return false;
}

void MemoryPlan::place() {
  std::vector<std::size_t> order(tensors_.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return tensors_[a].size_bytes > tensors_[b].size_bytes; });
  size_bytes_ = total_bytes_ = 0;
  std::vector<const TensorInfo*> placed;  // ascending by offset
  for (std::size_t i : order) {
    TensorInfo& t = tensors_[i];
    if ((t.live.empty() && !t.persistent) || t.size_bytes == 0) continue;
    std::size_t offset = 0;
    for (const TensorInfo* other : placed) {
      if (!alive_together(t, *other)) continue;
      if (offset + aligned(t.size_bytes) <= other->offset) break;  // fits into the hole before `other`
      offset = std::max(offset, other->offset + aligned(other->size_bytes));
    }
    t.offset = offset;
    placed.insert(std::upper_bound(placed.begin(), placed.end(), &t,
                                   [](const TensorInfo* a, const TensorInfo* b) { return a->offset < b->offset; }),
                  &t);
    size_bytes_ = std::max(size_bytes_, offset + aligned(t.size_bytes));
    total_bytes_ += aligned(t.size_bytes);
  }
}

namespace {

/// The product as a floating-point number, which is exact for all allowed products and does not overflow for the
/// others.
double product(const Shape& shape, int first, int end) {
  double n = 1;
  for (int i = first; i < end; ++i) n *= static_cast<double>(shape[i]);
  return n;
}

}  // namespace

void require_possible_activation(const std::string& name, const Shape& shape, Mode mode) {
  if (shape.rank() == 0) return;
  const bool is_training = mode == Mode::train;
  require(shape[0] <= kMaxBatch, ErrorCode::op_description,
          "a rank would {} {} samples at once; at most {} are possible: lower {}", is_training ? "process" : "evaluate",
          shape[0], kMaxBatch,
          is_training ? "train.batch_per_rank, or use more ranks or train.accumulate" : "evaluation.batch_per_rank");
  const double of_sample = product(shape, 1, shape.rank()), positions = product(shape, 0, shape.rank() - 1);
  require(
      of_sample <= kMaxElements, ErrorCode::op_description,
      "{} would have the shape {}, which is {:.0f} numbers per sample; at most {} are possible: use smaller samples "
      "or a smaller model",
      name, shape.text(), of_sample, kMaxElements);
  require(positions <= kMaxElements, ErrorCode::op_description,
          "{} would have the shape {}, which is {:.0f} positions of all samples; at most {} are possible: lower "
          "{}.batch_per_rank, or use smaller samples",
          name, shape.text(), positions, kMaxElements, is_training ? "train" : "evaluation");
}

void require_possible_parameter(const std::string& name, const Shape& shape) {
  require(product(shape, 0, shape.rank()) <= kMaxElements, ErrorCode::op_description,
          "the parameter {} would have the shape {}, which is {:.0f} numbers; at most {} are possible: use a smaller "
          "model",
          name, shape.text(), product(shape, 0, shape.rank()), kMaxElements);
}

}  // namespace lockstep::graph
