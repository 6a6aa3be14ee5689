// The table of the reference's ops. To add an op, include its header, declare the factory that its file defines, and
// add a row.
#include "test/reference/ops.h"

#include "lockstep/ops/activation.h"
#include "lockstep/ops/add.h"
#include "lockstep/ops/batch_norm.h"
#include "lockstep/ops/cast.h"
#include "lockstep/ops/clip_norm.h"
#include "lockstep/ops/conv2d.h"
#include "lockstep/ops/cross_entropy.h"
#include "lockstep/ops/hash.h"
#include "lockstep/ops/image_input.h"
#include "lockstep/ops/matmul.h"
#include "lockstep/ops/mix_images.h"
#include "lockstep/ops/moving_average.h"
#include "lockstep/ops/optimizer.h"
#include "lockstep/ops/ordered_sum.h"
#include "lockstep/ops/pool2d.h"
#include "lockstep/ops/random_erase.h"
#include "test/reference/attention.h"
#include "test/reference/cached_attention.h"
#include "test/reference/embedding.h"
#include "test/reference/linear_cross_entropy.h"
#include "test/reference/lora.h"
#include "test/reference/nf4_matmul.h"
#include "test/reference/rms_norm.h"
#include "test/reference/rotary.h"
#include "test/reference/swiglu.h"

namespace lockstep::reference {

template <typename Description>
using Factory = std::unique_ptr<typename Description::Op>(const Description&, const Context&);
Factory<ActivationDescription> make_activation;
Factory<AddDescription> make_add;
Factory<AttentionDescription> make_attention;
Factory<BatchNormDescription> make_batch_norm;
Factory<CastDescription> make_cast;
Factory<ClipNormDescription> make_clip_norm;
Factory<Conv2dDescription> make_conv2d;
Factory<HashDescription> make_hash;
Factory<ImageInputDescription> make_image_input;
Factory<MatmulDescription> make_matmul;
Factory<MixImagesDescription> make_mix_images;
Factory<MovingAverageDescription> make_moving_average;
Factory<OptimizerDescription> make_optimizer;
Factory<OrderedSumDescription> make_ordered_sum;
Factory<Pool2dDescription> make_pool2d;
Factory<RandomEraseDescription> make_random_erase;
Factory<RmsNormDescription> make_rms_norm;
Factory<SoftmaxCrossEntropyDescription> make_softmax_cross_entropy;
Factory<SwiGluDescription> make_swiglu;

namespace {

// One row per line.
// clang-format off
constexpr OpRow<Context> kOps[] = {
    op_row<make_activation>(),
    op_row<make_add>(),
    op_row<make_attention>(),
    op_row<make_batch_norm>(),
    op_row<make_cached_attention>(),
    op_row<make_cast>(),
    op_row<make_clip_norm>(),
    op_row<make_conv2d>(),
    op_row<make_embedding>(),
    op_row<make_hash>(),
    op_row<make_image_input>(),
    op_row<make_linear_cross_entropy>(),
    op_row<make_lora>(),
    op_row<make_matmul>(),
    op_row<make_mix_images>(),
    op_row<make_moving_average>(),
    op_row<make_nf4_matmul>(),
    op_row<make_optimizer>(),
    op_row<make_ordered_sum>(),
    op_row<make_pool2d>(),
    op_row<make_random_erase>(),
    op_row<make_rms_norm>(),
    op_row<make_rotary>(),
    op_row<make_softmax_cross_entropy>(),
    op_row<make_swiglu>(),
};
// clang-format on

}  // namespace

std::unique_ptr<Op> make_op(const OpRequest& request) {
  return lockstep::make_op<Context>(kOps, request, Context(), "reference");
}

}  // namespace lockstep::reference
