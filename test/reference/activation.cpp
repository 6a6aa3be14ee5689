// y = f(x), dx = f'(x) * dy. Formula: lockstep/ops/activation.h.
#include "test/reference/activation.h"

#include "lockstep/ops/activation.h"
#include "test/reference/normalization.h"
#include "test/reference/ops.h"

namespace lockstep::reference {
namespace {

class ReferenceActivation final : public ActivationOp {
 public:
  explicit ReferenceActivation(const ActivationDescription& d) : d_(d) {}
  std::string describe() const override { return "reference"; }

  void run_forward(const Forward& args, const OpMemory&, Stream&) override {
    for (Index i = 0; i < d_.n_elements; ++i)
      static_cast<float*>(args.y)[i] =
          static_cast<float>(activation(d_.function, static_cast<const float*>(args.x)[i]));
  }
  void run_backward(const Backward& args, const OpMemory&, Stream&) override {
    for (Index i = 0; i < d_.n_elements; ++i)
      put(static_cast<float*>(args.dx)[i],
          activation_derivative(d_.function, static_cast<const float*>(args.x)[i]) *
              static_cast<const float*>(args.dy)[i],
          args.dx_mode);
  }

 private:
  ActivationDescription d_;
};

}  // namespace

std::unique_ptr<ActivationOp> make_activation(const ActivationDescription& d, const Context&) {
  return std::make_unique<ReferenceActivation>(d);
}

}  // namespace lockstep::reference
