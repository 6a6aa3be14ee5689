// The factories of a backend whose ops are those of kernels/cuda: the device's, and the one that tests run on the host.
#pragma once

#include <memory>
#include <utility>

#include "kernels/cuda/batchnorm.h"
#include "kernels/cuda/cast.h"
#include "kernels/cuda/clip_norm.h"
#include "kernels/cuda/conv2d.h"
#include "kernels/cuda/cross_entropy.h"
#include "kernels/cuda/hash.h"
#include "kernels/cuda/image_input.h"
#include "kernels/cuda/matmul.h"
#include "kernels/cuda/moving_average.h"
#include "kernels/cuda/optimizer.h"
#include "kernels/cuda/ordered_sum.h"
#include "kernels/cuda/pool2d.h"
#include "lockstep/backend.h"

namespace lockstep::cuda {

class OpsBackend : public Backend {
 public:
  OpsBackend(const CudaContext& context, std::shared_ptr<Algorithms> algorithms, const CudaOptions& options = {})
      : context_(context), algorithms_(std::move(algorithms)), options_(options) {}

  /// cuDNN's fast kernels want channels last.
  Layout activation_layout(const Shape&, DType) const override { return Layout::nhwc; }

  std::unique_ptr<Conv2d> conv2d(const Conv2dDescription& d) override {
    return make_conv2d(d, context_, options_, algorithms_.get());
  }
  std::unique_ptr<Pool2d> pool2d(const Pool2dDescription& d) override { return make_pool2d(d, context_); }
  std::unique_ptr<BatchNorm> batch_norm(const BatchNormDescription& d) override { return make_batch_norm(d, context_); }
  std::unique_ptr<Matmul> matmul(const MatmulDescription& d) override {
    return make_matmul(d, context_, algorithms_.get());
  }
  std::unique_ptr<SoftmaxCrossEntropy> softmax_cross_entropy(const SoftmaxCrossEntropyDescription& d) override {
    return make_softmax_cross_entropy(d, context_);
  }
  std::unique_ptr<ImageInput> image_input(const ImageInputDescription& d) override {
    return make_image_input(d, context_);
  }
  std::unique_ptr<Optimizer> optimizer(const OptimizerDescription& d) override { return make_optimizer(d, context_); }
  std::unique_ptr<ClipNorm> clip_norm(const ClipNormDescription& d) override { return make_clip_norm(d, context_); }
  std::unique_ptr<OrderedSum> ordered_sum(const OrderedSumDescription& d) override {
    return make_ordered_sum(d, context_);
  }
  std::unique_ptr<Cast> cast(const CastDescription& d) override { return make_cast(d, context_); }
  std::unique_ptr<MovingAverage> moving_average(const MovingAverageDescription& d) override {
    return make_moving_average(d, context_);
  }
  std::unique_ptr<Hash> hash(const HashDescription& d) override { return make_hash(d, context_); }

 protected:
  const CudaContext& context() const { return context_; }

 private:
  CudaContext context_;
  std::shared_ptr<Algorithms> algorithms_;
  CudaOptions options_;
};

}  // namespace lockstep::cuda
