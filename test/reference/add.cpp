// y = a + b. Formula: lockstep/ops/add.h.
#include "lockstep/ops/add.h"

#include "test/reference/normalization.h"
#include "test/reference/ops.h"

namespace lockstep::reference {
namespace {

class ReferenceAdd final : public Add {
 public:
  explicit ReferenceAdd(const AddDescription& d) : d_(d) {}
  std::string describe() const override { return "reference"; }

  void run_forward(const Forward& args, const OpMemory&, Stream&) override {
    for (Index i = 0; i < d_.n_elements; ++i)
      static_cast<float*>(args.y)[i] = static_cast<const float*>(args.a)[i] + static_cast<const float*>(args.b)[i];
  }
  void run_backward(const Backward& args, const OpMemory&, Stream&) override {
    for (Index i = 0; i < d_.n_elements; ++i) {
      const double dy = static_cast<const float*>(args.dy)[i];
      if (args.da_mode != GradientMode::skip) put(static_cast<float*>(args.da)[i], dy, args.da_mode);
      if (args.db_mode != GradientMode::skip) put(static_cast<float*>(args.db)[i], dy, args.db_mode);
    }
  }

 private:
  AddDescription d_;
};

}  // namespace

std::unique_ptr<Add> make_add(const AddDescription& d, const Context&) { return std::make_unique<ReferenceAdd>(d); }

}  // namespace lockstep::reference
