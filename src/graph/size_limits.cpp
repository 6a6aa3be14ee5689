#include "graph/size_limits.h"

#include "graph/graph.h"
#include "lockstep/error.h"

namespace lockstep::graph {
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
