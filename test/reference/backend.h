// Every op computed naively, internally in double, from the formulas of lockstep/ops/; with nhwc and canonical weights
// only. It reports all fusions: nothing is saved between passes, and no workspace is used. Other backends are compared
// with it. When a test runs one graph on several backends, it is the one that fuses everything.
#pragma once

#include <memory>

#include "lockstep/backend.h"
#include "lockstep/ops/batch_norm.h"
#include "lockstep/ops/cast.h"
#include "lockstep/ops/clip_norm.h"
#include "lockstep/ops/conv2d.h"
#include "lockstep/ops/cross_entropy.h"
#include "lockstep/ops/hash.h"
#include "lockstep/ops/image_input.h"
#include "lockstep/ops/matmul.h"
#include "lockstep/ops/moving_average.h"
#include "lockstep/ops/optimizer.h"
#include "lockstep/ops/ordered_sum.h"
#include "lockstep/ops/pool2d.h"

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
  void copy(void* target, const void* source, std::size_t size_bytes, Stream& stream) override;
  void fill_zero(void* d_target, std::size_t size_bytes, Stream& stream) override;

  std::string check_precision(Precision) const override { return {}; }
  Layout activation_layout(const Shape&, DType) const override { return Layout::nhwc; }

  std::unique_ptr<Op> make_op(const OpRequest& request) override;

 private:
  bool frozen_ = false;
};

std::unique_ptr<Backend> make_reference_backend();

}  // namespace lockstep::reference
