// The floating-point operations that the mathematics of a model needs: multiplications and additions of matrix
// products, convolutions and attention, forward and backward. What is recomputed to save memory is not counted, and
// neither is what grows only with the number of activations (norms, activation functions, the optimizer). Source: the
// count of model FLOPs in Chowdhery et al., "PaLM", 2022, appendix B.
#pragma once

namespace lockstep::graph {

class Graph;

/// The operations of one micro-batch, in the phases for which the graph is planned.
struct Flops {
  double forward = 0;
  double passes = 1;  // multiples of `forward`: one for the forward pass, and one for each gradient of an operand
  /// Some algorithms need fewer, such as Winograd's for a convolution.
  bool are_upper_bound = false;
  double total() const { return forward * passes; }
};

/// Implemented by the nodes that multiply.
class CountsFlops {
 public:
  virtual ~CountsFlops() = default;
  /// Known after plan().
  virtual Flops flops() const = 0;
};

/// How often a product of an input and a weight is computed, its gradients included: each takes as many operations as
/// the forward pass.
inline double product_passes(bool training, bool input_gradient, bool weight_gradient) {
  return 1.0 + (training && input_gradient ? 1 : 0) + (training && weight_gradient ? 1 : 0);
}

/// The sum over the nodes of a planned graph.
double flops_of(const Graph& graph);
/// Whether that sum is what the graph computes, whatever its algorithms are. Only then is their rate a utilisation.
bool flops_are_exact(const Graph& graph);

}  // namespace lockstep::graph
