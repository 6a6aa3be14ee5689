// RMS norm of the ReferenceBackend (rms_norm.h).
#include "test/reference/rms_norm.h"

#include "test/reference/ops.h"

namespace lockstep::reference {
namespace {

class ReferenceRmsNorm final : public RmsNorm {
 public:
  explicit ReferenceRmsNorm(const RmsNormDescription& d) : d_(d) {}
  OpNeeds needs() const override { return {}; }
  std::string describe() const override { return "reference: all fused"; }

  void run_forward(const Forward& args, const OpMemory&, Stream&) override {
    const auto* const residual = d_.residual ? static_cast<const float*>(args.residual) : nullptr;
    rms_norm_forward<float>(d_, {static_cast<const float*>(args.x), residual, args.weight, static_cast<float*>(args.s),
                                 static_cast<float*>(args.y)});
  }
  void run_backward(const Backward& args, const OpMemory&, Stream&) override {
    rms_norm_backward<float>(d_, {static_cast<const float*>(args.dy), static_cast<const float*>(args.s), args.weight,
                                  static_cast<const float*>(args.added), static_cast<float*>(args.ds), args.ds_mode,
                                  args.dweight, args.dweight_mode});
  }

 private:
  RmsNormDescription d_;
};

}  // namespace

std::unique_ptr<RmsNorm> make_rms_norm(const RmsNormDescription& d, const Context&) {
  return std::make_unique<ReferenceRmsNorm>(d);
}

}  // namespace lockstep::reference
