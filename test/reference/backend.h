// Every op computed naively, in double inside, from the formulas of op.h; nhwc and canonical weights only. It claims
// all fusions: nothing is saved between passes, no workspace is used. What other backends are compared with, and the
// backend that fuses everything where a test runs one graph on several.
#pragma once

#include <memory>

#include "lockstep/backend.h"

namespace lockstep::reference {

class ReferenceBackend final : public Backend {
 public:
  std::string name() const override { return "reference"; }
  DeviceInfo device() const override;

  std::unique_ptr<Memory> allocate(std::size_t size_bytes, const std::string& purpose) override;
  std::unique_ptr<Memory> allocate_host(std::size_t size_bytes, const std::string& purpose) override {
    return allocate(size_bytes, purpose);
  }
  void freeze() override { frozen_ = true; }
  void unfreeze() override { frozen_ = false; }

  using Backend::make_stream;
  std::unique_ptr<Stream> make_stream(StreamPriority) override;
  std::unique_ptr<Event> make_event() override;
  std::unique_ptr<CapturedGraph> make_captured_graph() override { return std::make_unique<EagerGraph>(); }
  void copy_to_device(void* d_target, const void* h_source, std::size_t size_bytes, Stream& stream) override;
  void copy_to_host(void* h_target, const void* d_source, std::size_t size_bytes, Stream& stream) override;
  void fill_zero(void* d_target, std::size_t size_bytes, Stream& stream) override;

  std::string check_precision(Precision) const override { return {}; }
  Layout activation_layout(const Shape&, DType) const override { return Layout::nhwc; }

  std::unique_ptr<Conv2d> conv2d(const Conv2dDescription& description) override;
  std::unique_ptr<Pool2d> pool2d(const Pool2dDescription& description) override;
  std::unique_ptr<BatchNorm> batch_norm(const BatchNormDescription& description) override;
  std::unique_ptr<Matmul> matmul(const MatmulDescription& description) override;
  std::unique_ptr<SoftmaxCrossEntropy> softmax_cross_entropy(
      const SoftmaxCrossEntropyDescription& description) override;
  std::unique_ptr<ImageInput> image_input(const ImageInputDescription& description) override;
  std::unique_ptr<Optimizer> optimizer(const OptimizerDescription& description) override;
  std::unique_ptr<ClipNorm> clip_norm(const ClipNormDescription& description) override;
  std::unique_ptr<OrderedSum> ordered_sum(const OrderedSumDescription& description) override;
  std::unique_ptr<Cast> cast(const CastDescription& description) override;
  std::unique_ptr<MovingAverage> moving_average(const MovingAverageDescription& description) override;
  std::unique_ptr<Hash> hash(const HashDescription& description) override;

 private:
  bool frozen_ = false;
};

std::unique_ptr<Backend> make_reference_backend();

}  // namespace lockstep::reference
