// An operation that must still be applied to a raw tensor to get an activation.
//
// Such an activation is *pending*. The first node that consumes it, its owner, applies it as part of its own op and, if
// there are other consumers, stores the result for them. In backward the owner comes last, adds the gradients of the
// others, and propagates the gradient. The graph itself only knows the owner; the node and the Pending know the rest
// (layers/pending_normalization.h).
#pragma once

#include <vector>

namespace lockstep::graph {

using ActivationId = int;
inline constexpr ActivationId kNoActivation = -1;

class Pending {
 public:
  virtual ~Pending() = default;
  /// The activations, besides the raw tensor, that the owner reads when it applies this.
  virtual std::vector<ActivationId> reads() const = 0;
  /// The activations, besides the raw tensor, through which a gradient may have to pass. Some may come from nodes that
  /// were added later.
  virtual std::vector<ActivationId> gradient_sources() const { return reads(); }
};

}  // namespace lockstep::graph
