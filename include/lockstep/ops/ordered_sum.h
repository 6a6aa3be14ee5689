// One leaf of a sum in the order of a fixed binary tree, so that the sum has the same bits on any number of ranks:
//     target = open[0] + (open[1] + ... (open[n-1] + value))
// elementwise, each addition rounded once. `open` holds the sums of subtrees that wait for their other half, the
// outermost first. If it is empty, the op is a copy. Planning throws not_supported for types other than fp32, fp64 and
// bf16.
#pragma once

#include <algorithm>
#include <array>
#include <ranges>

#include "lockstep/dtype.h"
#include "lockstep/error.h"
#include "lockstep/op.h"

namespace lockstep {

struct OrderedSumDescription {
  using Op = class OrderedSum;
  static constexpr std::string_view kName = "ordered_sum";

  DType dtype = DType::fp32;  // fp32, fp64 or bf16
};

struct OrderedSumCalls {
  /// A list of pointers that is stored in the arguments themselves, since a stream with a queue copies them.
  class Open {
   public:
    static constexpr std::size_t kMax = 64;  // the depth of the tree; no number of leaves needs more
    Open() = default;
    /// Copies any contiguous range of pointers. Throws internal if it is longer than kMax.
    template <std::ranges::contiguous_range Pointers>
    Open(const Pointers& pointers) : size_(std::ranges::size(pointers)) {
      require(size_ <= kMax, ErrorCode::internal, "an ordered sum over a tree of depth {}", size_);
      std::ranges::copy(pointers, pointers_.begin());
    }
    std::size_t size() const { return size_; }
    bool empty() const { return size_ == 0; }
    const void* operator[](std::size_t i) const { return pointers_[i]; }

   private:
    std::array<const void*, kMax> pointers_{};
    std::size_t size_ = 0;
  };

  struct Apply {
    const void* value = nullptr;
    Open open{};
    void* target = nullptr;  // may be `value` or one of `open`
    std::size_t begin = 0;   // elements [begin, begin + n_elements) of each
    std::size_t n_elements = 0;
  };
};

class OrderedSum : public ApplyOp<OrderedSumDescription, OrderedSumCalls> {};

}  // namespace lockstep
