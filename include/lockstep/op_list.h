// The list of all ops: each description, and the name of the factory that every backend and the reference define:
//
//   std::unique_ptr<Conv2d> make_conv2d(const Conv2dDescription&, const Context&)
//
// To add an op, add the include of its header and a row. A backend that cannot compute it throws not_supported. Sizes
// that no backend can have are refused by require_possible() in the op's header.
#pragma once

#include <memory>

#include "lockstep/error.h"
#include "lockstep/op.h"
#include "lockstep/ops/activation.h"
#include "lockstep/ops/add.h"
#include "lockstep/ops/attention.h"
#include "lockstep/ops/batch_norm.h"
#include "lockstep/ops/cached_attention.h"
#include "lockstep/ops/cast.h"
#include "lockstep/ops/clip_norm.h"
#include "lockstep/ops/conv2d.h"
#include "lockstep/ops/cross_entropy.h"
#include "lockstep/ops/embedding.h"
#include "lockstep/ops/glu.h"
#include "lockstep/ops/hash.h"
#include "lockstep/ops/image_input.h"
#include "lockstep/ops/linear_cross_entropy.h"
#include "lockstep/ops/lora.h"
#include "lockstep/ops/matmul.h"
#include "lockstep/ops/mix_images.h"
#include "lockstep/ops/moving_average.h"
#include "lockstep/ops/nf4_matmul.h"
#include "lockstep/ops/optimizer.h"
#include "lockstep/ops/ordered_sum.h"
#include "lockstep/ops/pool2d.h"
#include "lockstep/ops/random_erase.h"
#include "lockstep/ops/rms_norm.h"
#include "lockstep/ops/rotary.h"
#include "lockstep/ops/sample.h"

// clang-format off
#define LOCKSTEP_OPS(row) \
  row(ActivationDescription, make_activation) \
  row(AddDescription, make_add) \
  row(AttentionDescription, make_attention) \
  row(BatchNormDescription, make_batch_norm) \
  row(CachedAttentionDescription, make_cached_attention) \
  row(CastDescription, make_cast) \
  row(ClipNormDescription, make_clip_norm) \
  row(Conv2dDescription, make_conv2d) \
  row(EmbeddingDescription, make_embedding) \
  row(HashDescription, make_hash) \
  row(ImageInputDescription, make_image_input) \
  row(LinearCrossEntropyDescription, make_linear_cross_entropy) \
  row(LoraDescription, make_lora) \
  row(MatmulDescription, make_matmul) \
  row(MixImagesDescription, make_mix_images) \
  row(MovingAverageDescription, make_moving_average) \
  row(Nf4MatmulDescription, make_nf4_matmul) \
  row(OptimizerDescription, make_optimizer) \
  row(OrderedSumDescription, make_ordered_sum) \
  row(Pool2dDescription, make_pool2d) \
  row(RandomEraseDescription, make_random_erase) \
  row(RmsNormDescription, make_rms_norm) \
  row(RotaryDescription, make_rotary) \
  row(SampleDescription, make_sample) \
  row(SoftmaxCrossEntropyDescription, make_softmax_cross_entropy) \
  row(GluDescription, make_glu)
// clang-format on

namespace lockstep {

/// Throws op_description for a description that no backend can plan, and calls the factory otherwise.
template <typename Planned, typename Description, typename Context>
std::unique_ptr<Op> make_if_possible(std::unique_ptr<Planned> (*make)(const Description&, const Context&),
                                     const OpRequest& request, const Context& context) {
  const auto& description = *static_cast<const Description*>(request.description);
  if constexpr (requires { require_possible(description); }) require_possible(description);
  return make(description, context);
}

}  // namespace lockstep

/// Declares the factories of a backend, and defines its make_op(), which calls the one for a request.
#define LOCKSTEP_DEFINE_MAKE_OP(Context)                                            \
  using OpContext = Context;                                                        \
  LOCKSTEP_OPS(LOCKSTEP_DECLARE_FACTORY)                                            \
  std::unique_ptr<Op> make_op(const OpRequest& request, const OpContext& context) { \
    LOCKSTEP_OPS(LOCKSTEP_MAKE_IF_REQUESTED)                                        \
    fail(ErrorCode::not_supported, "there is no op {} in the list", request.name);  \
  }
#define LOCKSTEP_DECLARE_FACTORY(Description, make) \
  std::unique_ptr<Description::Op> make(const Description&, const OpContext&);
#define LOCKSTEP_MAKE_IF_REQUESTED(Description, make) \
  if (request.type == typeid(Description)) return make_if_possible(make, request, context);
