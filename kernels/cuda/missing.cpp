// Ops that are not written yet.
#include "kernels/cuda/clip_norm.h"
#include "kernels/cuda/conv2d.h"
#include "kernels/cuda/cross_entropy.h"
#include "kernels/cuda/hash.h"
#include "kernels/cuda/image_input.h"
#include "kernels/cuda/matmul.h"
#include "kernels/cuda/optimizer.h"
#include "kernels/cuda/tree_sum.h"
#include "lockstep/error.h"

namespace lockstep::cuda {

std::unique_ptr<ClipNorm> make_clip_norm(const ClipNormDescription&, const CudaContext&) {
  fail(ErrorCode::not_supported, "clip_norm is not written for cuda");
}
std::unique_ptr<Conv2d> make_conv2d(const Conv2dDescription&, const CudaContext&, Algorithms*) {
  fail(ErrorCode::not_supported, "conv2d is not written for cuda");
}
std::unique_ptr<SoftmaxCrossEntropy> make_softmax_cross_entropy(const SoftmaxCrossEntropyDescription&,
                                                                const CudaContext&) {
  fail(ErrorCode::not_supported, "softmax_cross_entropy is not written for cuda");
}
std::unique_ptr<Hash> make_hash(const HashDescription&, const CudaContext&) {
  fail(ErrorCode::not_supported, "hash is not written for cuda");
}
std::unique_ptr<ImageInput> make_image_input(const ImageInputDescription&, const CudaContext&) {
  fail(ErrorCode::not_supported, "image_input is not written for cuda");
}
std::unique_ptr<Matmul> make_matmul(const MatmulDescription&, const CudaContext&, Algorithms*) {
  fail(ErrorCode::not_supported, "matmul is not written for cuda");
}
std::unique_ptr<Optimizer> make_optimizer(const OptimizerDescription&, const CudaContext&) {
  fail(ErrorCode::not_supported, "optimizer is not written for cuda");
}
std::unique_ptr<TreeSum> make_tree_sum(const TreeSumDescription&, const CudaContext&) {
  fail(ErrorCode::not_supported, "tree_sum is not written for cuda");
}

}  // namespace lockstep::cuda
