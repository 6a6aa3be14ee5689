// Conversion of numbers to another type. Formula: lockstep/ops/cast.h.
#include "lockstep/ops/cast.h"
#include "lockstep/bf16.h"
#include "test/reference/ops.h"

namespace lockstep::reference {
namespace {

class ReferenceCast final : public Cast {
 public:
  explicit ReferenceCast(const CastDescription& d) : d_(d) {}
  std::string describe() const override { return "reference"; }

  void run_apply(const Apply& args, const OpMemory&, Stream&) override {
    for (std::size_t i = 0; i < args.n_elements; ++i) {
      if (d_.to == DType::bf16)
        static_cast<Bf16*>(args.target)[i] = to_bf16(static_cast<const float*>(args.source)[i]);
      else
        static_cast<float*>(args.target)[i] = to_float(static_cast<const Bf16*>(args.source)[i]);
    }
  }

 private:
  CastDescription d_;
};

}  // namespace

std::unique_ptr<Cast> make_cast(const CastDescription& description, const Context&) {
  return std::make_unique<ReferenceCast>(description);
}

}  // namespace lockstep::reference
