// One description of inputs and outputs for the fusable units, convolution and pooling: creates the inputs of a
// description, runs forward and backward on any backend, and compares with the reference. All activations here are nhwc
// and all weights canonical; run() converts them to what the description requires.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "lockstep/backend.h"
#include "lockstep/ops/conv2d.h"
#include "lockstep/ops/pool2d.h"
#include "test/support/sanitizers.h"

namespace lockstep::test {

struct UnitModes {
  GradientMode dx = GradientMode::overwrite;  // without normalisation
  GradientMode dweight = GradientMode::overwrite;
  bool added = false;
  bool added_is_dz = false;            // the added gradient is at the address where dz is written
  bool added_dy = false;               // pooling reads two gradients of its output
  bool low_precision_dweight = false;  // in the type of x, if the op offers that, and then cast
};

struct UnitInputs {
  std::vector<float> x, dy, added_dy, weight;  // added_dy: of pooling
  std::vector<float> scale_bias, residual, residual_scale_bias;
  std::vector<float> mean_inverse_stddev, residual_mean_inverse_stddev, added;
  std::vector<float> dx_before, dweight_before;  // what the gradients contain before they accumulate
};

struct UnitOutputs {
  std::vector<float> y, z, dx, dweight;  // dx: dz if there is a normalisation
  std::vector<double> statistics, sums, residual_sums;
};

/// Random inputs with no ReLU within 0.02 of its kink, where fp32 and double could differ in sign.
UnitInputs make_inputs(const Conv2dDescription& description, std::uint32_t stream);
UnitInputs make_inputs(const Pool2dDescription& description, std::uint32_t stream);

/// Rounds activations, their gradients and weights to bf16 or fp16, so that a run in that type has the same inputs.
UnitInputs rounded_to(DType dtype, UnitInputs inputs);

/// Runs forward, then backward unless description.inference. Outputs that are not computed stay empty.
UnitOutputs run(Backend& backend, const Conv2dDescription& description, const UnitInputs& inputs,
                const UnitModes& modes);
UnitOutputs run(Backend& backend, const Pool2dDescription& description, const UnitInputs& inputs,
                const UnitModes& modes);

/// The same formulas with absolute values, which bound the terms of every sum (compare.h).
UnitOutputs magnitudes(Conv2dDescription description, UnitInputs inputs, const UnitModes& modes);
UnitOutputs magnitudes(Pool2dDescription description, UnitInputs inputs, const UnitModes& modes);

/// The lengths of the sums: `n_forward` operations for an element of y, `n_data` for one of dx, and `n_weight` for one
/// of dweight. Every output must be within rounding.
struct UnitLengths {
  double n_forward = 1;
  double n_data = 1;
  double n_weight = 1;
};
UnitLengths lengths(const Conv2dDescription& description);
UnitLengths lengths(const Pool2dDescription& description);
void expect_within_rounding(const UnitOutputs& actual, const UnitOutputs& expected, const UnitOutputs& magnitude,
                            const UnitLengths& lengths, DType dtype = DType::fp32);

/// Every normalisation that a description can have; the first is none.
std::vector<std::optional<InputNormalization>> all_normalizations();
/// Programs with sanitizers are several times slower: their tests take every third normalisation.
inline int normalization_step() { return has_address_sanitizer() ? 3 : 1; }
/// Every combination of modes.
std::vector<UnitModes> all_modes();

std::string text(const std::optional<InputNormalization>& normalization);
std::string text(const UnitModes& modes);

}  // namespace lockstep::test
