// The table of this backend's ops. To add an op, include its header, declare the factory that its file defines, and add
// a row.
#include "kernels/cuda/ops.h"

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
#include "lockstep/ops/swiglu.h"

namespace lockstep::cuda {

template <typename Description>
using Factory = std::unique_ptr<typename Description::Op>(const Description&, const CudaContext&);
Factory<ActivationDescription> make_activation;
Factory<AddDescription> make_add;
Factory<AttentionDescription> make_attention;
Factory<BatchNormDescription> make_batch_norm;
Factory<CachedAttentionDescription> make_cached_attention;
Factory<CastDescription> make_cast;
Factory<ClipNormDescription> make_clip_norm;
Factory<Conv2dDescription> make_conv2d;
Factory<EmbeddingDescription> make_embedding;
Factory<HashDescription> make_hash;
Factory<ImageInputDescription> make_image_input;
Factory<LinearCrossEntropyDescription> make_linear_cross_entropy;
Factory<LoraDescription> make_lora;
Factory<MatmulDescription> make_matmul;
Factory<MixImagesDescription> make_mix_images;
Factory<MovingAverageDescription> make_moving_average;
Factory<Nf4MatmulDescription> make_nf4_matmul;
Factory<OptimizerDescription> make_optimizer;
Factory<OrderedSumDescription> make_ordered_sum;
Factory<Pool2dDescription> make_pool2d;
Factory<RandomEraseDescription> make_random_erase;
Factory<RmsNormDescription> make_rms_norm;
Factory<RotaryDescription> make_rotary;
Factory<SoftmaxCrossEntropyDescription> make_softmax_cross_entropy;
Factory<SwiGluDescription> make_swiglu;

namespace {

// One row per line.
// clang-format off
constexpr OpRow<CudaContext> kOps[] = {
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

std::unique_ptr<Op> make_op(const OpRequest& request, const CudaContext& context) {
  return lockstep::make_op<CudaContext>(kOps, request, context, "cuda");
}

}  // namespace lockstep::cuda
