// Ops that are not written yet.
#include "kernels/cuda/batchnorm.h"
#include "kernels/cuda/conv2d.h"
#include "kernels/cuda/matmul.h"
#include "kernels/cuda/pool2d.h"
#include "lockstep/error.h"

namespace lockstep::cuda {

std::unique_ptr<BatchNorm> make_batch_norm(const BatchNormDescription&, const CudaContext&) {
  fail(ErrorCode::not_supported, "batch_norm is not written for cuda");
}
std::unique_ptr<Conv2d> make_conv2d(const Conv2dDescription&, const CudaContext&, Algorithms*) {
  fail(ErrorCode::not_supported, "conv2d is not written for cuda");
}
std::unique_ptr<Matmul> make_matmul(const MatmulDescription&, const CudaContext&, Algorithms*) {
  fail(ErrorCode::not_supported, "matmul is not written for cuda");
}
std::unique_ptr<Pool2d> make_pool2d(const Pool2dDescription&, const CudaContext&) {
  fail(ErrorCode::not_supported, "pool2d is not written for cuda");
}

}  // namespace lockstep::cuda
