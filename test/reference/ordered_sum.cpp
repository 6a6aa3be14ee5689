// One leaf of a sum in the order of a tree. Formula: lockstep/ops/ordered_sum.h.
#include "lockstep/ops/ordered_sum.h"
#include "test/reference/ops.h"

namespace lockstep::reference {
namespace {

/// Adds in the type of the sum, not in double, since the op defines the order of rounded additions.
template <typename T>
class ReferenceOrderedSum final : public OrderedSum {
 public:
  std::string describe() const override { return "reference"; }

  void run_apply(const Apply& args, const OpMemory&, Stream&) override {
    for (std::size_t i = args.begin; i < args.begin + args.n_elements; ++i) {
      T total = static_cast<const T*>(args.value)[i];
      for (std::size_t s = args.open.size(); s-- > 0;) total = static_cast<const T*>(args.open[s])[i] + total;
      static_cast<T*>(args.target)[i] = total;
    }
  }
};

}  // namespace

std::unique_ptr<OrderedSum> make_ordered_sum(const OrderedSumDescription& d, const Context&) {
  if (d.dtype == DType::fp64) return std::make_unique<ReferenceOrderedSum<double>>();
  return std::make_unique<ReferenceOrderedSum<float>>();
}

}  // namespace lockstep::reference
