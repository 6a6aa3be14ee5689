#include "test/support/unit.h"

#include <gtest/gtest.h>

#include <cmath>

#include "lockstep/ops/cast.h"
#include "test/reference/backend.h"
#include "test/reference/normalization.h"
#include "test/support/compare.h"
#include "test/support/device.h"
#include "test/support/tensor.h"

namespace lockstep::test {
namespace {

using Residual = InputNormalization::Residual;

/// Random scales of both signs, away from zero. The second row, the bias, is arbitrary.
std::vector<float> random_scale_bias(std::int64_t channels, std::uint32_t stream) {
  std::vector<float> values = random_uniform(2 * channels, stream, 0.5, 1.5);
  for (std::int64_t c = 0; c < channels; ++c) {
    if (c % 3 == 2) values[static_cast<std::size_t>(c)] *= -1;
    values[static_cast<std::size_t>(channels + c)] -= 0.9f;
  }
  return values;
}

std::vector<float> random_mean_inverse_stddev(std::int64_t channels, std::uint32_t stream) {
  std::vector<float> values = random_uniform(2 * channels, stream, 0.5, 2.0);
  for (std::int64_t c = 0; c < channels; ++c) values[static_cast<std::size_t>(c)] -= 1.2f;
  return values;
}

reference::Input<float> reference_input(const Shape& x, const std::optional<InputNormalization>& normalization,
                                        const UnitInputs& in) {
  return {x[0] * x[1] * x[2],
          x[3],
          in.x.data(),
          normalization,
          {in.scale_bias.data(), in.residual.data(), in.residual_scale_bias.data(), nullptr}};
}

UnitInputs make_inputs(const Shape& x, const Shape& y, const std::optional<InputNormalization>& normalization,
                       std::uint32_t stream) {
  UnitInputs in;
  in.x = random_normal(x.n_elements(), 100 * stream + 1);
  in.dy = random_normal(y.n_elements(), 100 * stream + 2);
  in.dx_before = random_normal(x.n_elements(), 100 * stream + 3);
  if (!normalization) return in;
  in.scale_bias = random_scale_bias(x[3], 100 * stream + 4);
  in.mean_inverse_stddev = random_mean_inverse_stddev(x[3], 100 * stream + 5);
  in.added = random_normal(x.n_elements(), 100 * stream + 6);
  if (normalization->residual != Residual::none) in.residual = random_normal(x.n_elements(), 100 * stream + 7);
  if (normalization->residual == Residual::normalized) {
    in.residual_scale_bias = random_scale_bias(x[3], 100 * stream + 8);
    in.residual_mean_inverse_stddev = random_mean_inverse_stddev(x[3], 100 * stream + 9);
  }
  const auto z = reference_input(x, normalization, in);
  for (std::int64_t row = 0; row < z.rows; ++row)
    for (std::int64_t c = 0; c < z.channels; ++c)
      if (std::abs(z.before_activation(row, c)) < 0.02) in.x[static_cast<std::size_t>(row * z.channels + c)] += 0.2f;
  return in;
}

UnitInputs absolute(UnitInputs in) {
  for (std::vector<float>* values :
       {&in.x, &in.dy, &in.added_dy, &in.weight, &in.scale_bias, &in.residual, &in.residual_scale_bias,
        &in.mean_inverse_stddev, &in.residual_mean_inverse_stddev, &in.added, &in.dx_before, &in.dweight_before})
    *values = test::absolute(*values);
  // If the mean is negated, x - mean becomes a sum of absolute values.
  for (std::vector<float>* values : {&in.mean_inverse_stddev, &in.residual_mean_inverse_stddev})
    for (std::size_t c = 0; c < values->size() / 2; ++c) (*values)[c] *= -1;
  return in;
}

/// The memory of one run, in the layouts of the description.
template <typename Op, typename Description>
class UnitRun {
 public:
  UnitRun(Backend& backend, const Description& d, const UnitInputs& in, const UnitModes& modes)
      : device_(backend), d_(d), in_(in), modes_(modes) {
    forward_.x = activation(in.x);
    forward_.y = y_ = device_.garbage_as(y_dtype(d), static_cast<std::size_t>(d.y().n_elements()));
    if (d.normalization) {
      forward_.normalization.scale_bias = device_.upload(in.scale_bias);
      if (size_bytes(d.dtype) == 2)
        forward_.normalization.low_precision_scale_bias = device_.upload_as(d.dtype, in.scale_bias);
      forward_.normalization.residual = in.residual.empty() ? nullptr : activation(in.residual);
      if (!in.residual_scale_bias.empty())
        forward_.normalization.residual_scale_bias = device_.upload(in.residual_scale_bias);
      if (!in.residual_scale_bias.empty() && size_bytes(d.dtype) == 2)
        forward_.normalization.low_precision_residual_scale_bias = device_.upload_as(d.dtype, in.residual_scale_bias);
      if (d.normalization->store) forward_.normalization.z = z_ = device_.garbage_as(d.dtype, in.x.size());
    }
  }

  /// `sums_dtype` is the type of the normalisation's sums.
  void prepare_backward(DType sums_dtype = DType::fp64) {
    backward_.dy = upload_dy(in_.dy);
    backward_.x = forward_.x;
    backward_.normalization = forward_.normalization;
    backward_.dx_mode = modes_.dx;
    if (!d_.normalization) {
      if (modes_.dx == GradientMode::accumulate) dx_ = activation(in_.dx_before);
      if (modes_.dx == GradientMode::overwrite) dx_ = device_.garbage_as(d_.dtype, in_.x.size());
      backward_.dx = dx_;  // null: skipped
      return;
    }
    NormalizationBackward& gradient = backward_.gradient;
    gradient.mean_inverse_stddev = device_.upload(in_.mean_inverse_stddev);
    if (modes_.added) gradient.added = activation(in_.added);
    const bool alias = modes_.added && modes_.added_is_dz;
    gradient.dz = dx_ = alias ? const_cast<void*>(gradient.added) : device_.garbage_as(d_.dtype, in_.x.size());
    const std::size_t n = in_.mean_inverse_stddev.size();
    const bool has_norm_of_residual = !in_.residual_mean_inverse_stddev.empty();
    gradient.sums = {device_.garbage_as(sums_dtype, n), sums_dtype};
    if (has_norm_of_residual) gradient.residual_sums = {device_.garbage_as(sums_dtype, n), sums_dtype};
    const GammaBeta norm = gamma_beta(in_.scale_bias, in_.mean_inverse_stddev);
    gradient.gamma = norm.gamma;
    gradient.beta = norm.beta;
    if (!has_norm_of_residual) return;
    gradient.residual_mean_inverse_stddev = device_.upload(in_.residual_mean_inverse_stddev);
    const GammaBeta residual_norm = gamma_beta(in_.residual_scale_bias, in_.residual_mean_inverse_stddev);
    gradient.residual_gamma = residual_norm.gamma;
    gradient.residual_beta = residual_norm.beta;
  }

  const void* upload_dy(const std::vector<float>& dy) {
    return device_.upload_as(y_dtype(d_), to_layout(d_.y(), d_.y_layout, dy));
  }

  void read_forward(UnitOutputs& out) {
    out.y = from_layout(d_.y(), d_.y_layout,
                        device_.download_as(y_dtype(d_), y_, static_cast<std::size_t>(d_.y().n_elements())));
    if (z_) out.z = from_layout(d_.x, d_.x_layout, device_.download_as(d_.dtype, z_, in_.x.size()));
  }

  void read_backward(UnitOutputs& out) {
    if (dx_) out.dx = from_layout(d_.x, d_.x_layout, device_.download_as(d_.dtype, dx_, in_.x.size()));
    out.sums = download(backward_.gradient.sums, in_.mean_inverse_stddev.size());
    out.residual_sums = download(backward_.gradient.residual_sums, in_.mean_inverse_stddev.size());
  }

  /// Sums in fp64 or fp32.
  std::vector<double> download(const TypedPointer& sums, std::size_t n) {
    if (sums.data == nullptr) return {};
    if (sums.dtype == DType::fp32) return to_double(device_.download(sums.as<const float>(), n));
    return device_.download(sums.as<const double>(), n);
  }

  Device& device() { return device_; }
  typename Op::Forward& forward() { return forward_; }
  typename Op::Backward& backward() { return backward_; }

 private:
  struct GammaBeta {
    const float *gamma, *beta;
  };
  /// scale = gamma / stddev, bias = beta - mean * scale
  GammaBeta gamma_beta(const std::vector<float>& scale_bias, const std::vector<float>& mean_inverse_stddev) {
    const std::size_t c = scale_bias.size() / 2;
    std::vector<float> gamma(c), beta(c);
    for (std::size_t i = 0; i < c; ++i) {
      gamma[i] = scale_bias[i] / mean_inverse_stddev[c + i];
      beta[i] = scale_bias[c + i] + mean_inverse_stddev[i] * scale_bias[i];
    }
    return {device_.upload(gamma), device_.upload(beta)};
  }

  static DType y_dtype(const Conv2dDescription& d) { return d.dtype; }
  static DType y_dtype(const Pool2dDescription& d) { return d.y_dtype; }
  void* activation(const std::vector<float>& nhwc) {
    return device_.upload_as(d_.dtype, to_layout(d_.x, d_.x_layout, nhwc));
  }

  Device device_;
  const Description& d_;
  const UnitInputs& in_;
  const UnitModes& modes_;
  typename Op::Forward forward_;
  typename Op::Backward backward_;
  void *y_ = nullptr, *z_ = nullptr, *dx_ = nullptr;
};

}  // namespace

UnitInputs make_inputs(const Conv2dDescription& d, std::uint32_t stream) {
  UnitInputs in = make_inputs(d.x, d.y(), d.normalization, stream);
  const std::int64_t n_weights = d.out_channels * d.x[3] * d.kernel_size * d.kernel_size;
  in.weight = random_normal(n_weights, 100 * stream + 10);
  in.dweight_before = random_normal(n_weights, 100 * stream + 11);
  return in;
}

UnitInputs make_inputs(const Pool2dDescription& d, std::uint32_t stream) {
  UnitInputs in = make_inputs(d.x, d.y(), d.normalization, stream);
  in.added_dy = random_normal(d.y().n_elements(), 100 * stream + 12);
  return in;
}

UnitOutputs run(Backend& backend, const Conv2dDescription& d, const UnitInputs& in, const UnitModes& modes) {
  UnitRun<Conv2d, Conv2dDescription> unit(backend, d, in, modes);
  Device& device = unit.device();
  const auto op = backend.make(d);
  const OpMemory memory = device.op_memory(op->memory_requirements());
  const auto layout = op->weight_layout();
  std::vector<float> packed(layout->n_elements());
  layout->pack(in.weight, packed.data());
  unit.forward().weight = device.upload_as(d.dtype, packed);
  const auto n_statistics = static_cast<std::size_t>(2 * d.out_channels);
  const DType statistics_dtype = op->statistics_dtype();
  EXPECT_TRUE(statistics_dtype == DType::fp64 || d.fp32_sums);
  if (d.statistics) unit.forward().statistics = {device.garbage_as(statistics_dtype, n_statistics), statistics_dtype};
  op->forward(unit.forward(), memory, device.stream());
  UnitOutputs out;
  unit.read_forward(out);
  out.statistics = unit.download(unit.forward().statistics, n_statistics);
  if (d.inference) return out;

  EXPECT_TRUE(op->sums_dtype() == DType::fp64 || d.fp32_sums);
  unit.prepare_backward(op->sums_dtype());
  Conv2d::Backward& args = unit.backward();
  args.weight = unit.forward().weight;
  args.dweight_mode = modes.dweight;
  float* dweight_sum = nullptr;
  if (modes.dweight == GradientMode::accumulate) {
    layout->pack(in.dweight_before, packed.data());
    dweight_sum = device.upload(packed);
  }
  if (modes.dweight == GradientMode::overwrite) dweight_sum = device.garbage<float>(packed.size());
  args.dweight = dweight_sum;
  if (!d.input_gradient) args.dx = args.gradient.dz = nullptr;
  const bool is_narrow = modes.low_precision_dweight && op->gives_low_precision_dweight();
  if (is_narrow) args.dweight = {device.garbage_as(d.dtype, packed.size()), d.dtype};
  op->backward(args, memory, device.stream());
  if (is_narrow && modes.dweight != GradientMode::skip)
    device.backend()
        .make(CastDescription{.from = d.dtype, .to = DType::fp32})
        ->apply({.source = args.dweight.data,
                 .target = dweight_sum,
                 .n_elements = packed.size(),
                 .accumulate = modes.dweight == GradientMode::accumulate},
                {}, device.stream());
  if (d.input_gradient) unit.read_backward(out);
  if (modes.dweight == GradientMode::skip) return out;
  out.dweight.resize(in.weight.size());
  const std::vector<float> dweight = device.download(dweight_sum, packed.size());
  layout->unpack(dweight.data(), out.dweight);
  layout->pack(out.dweight, packed.data());
  EXPECT_EQ(packed, dweight) << "the padding of " << layout->describe() << " must stay zero";
  return out;
}

UnitOutputs run(Backend& backend, const Pool2dDescription& d, const UnitInputs& in, const UnitModes& modes) {
  UnitRun<Pool2d, Pool2dDescription> unit(backend, d, in, modes);
  const auto op = backend.make(d);
  const OpMemory memory = unit.device().op_memory(op->memory_requirements());
  op->forward(unit.forward(), memory, unit.device().stream());
  UnitOutputs out;
  unit.read_forward(out);
  if (d.inference) return out;
  unit.prepare_backward();
  if (modes.added_dy) unit.backward().added = unit.upload_dy(in.added_dy);
  op->backward(unit.backward(), memory, unit.device().stream());
  unit.read_backward(out);
  return out;
}

UnitOutputs magnitudes(Conv2dDescription d, UnitInputs in, const UnitModes& modes) {
  reference::ReferenceBackend backend;
  if (d.normalization) d.normalization->relu = false;
  return run(backend, d, absolute(std::move(in)), modes);
}

UnitOutputs magnitudes(Pool2dDescription d, UnitInputs in, const UnitModes& modes) {
  reference::ReferenceBackend backend;
  in = absolute(std::move(in));
  if (d.normalization) d.normalization->relu = false;
  UnitOutputs out = run(backend, d, in, modes);
  if (d.kind == Pool2dDescription::Kind::average || d.inference) return out;
  // With absolute values, another element may be the maximum, so all windows that contain an element are used. The
  // gradient of the average is dy / n_elements, so dy times n_elements bounds the gradient of the maximum.
  const auto n_elements =
      static_cast<float>(d.kernel_size == 0 ? d.x[1] * d.x[2] : std::int64_t{d.kernel_size} * d.kernel_size);
  for (std::vector<float>* gradient : {&in.dy, &in.added_dy})
    for (float& value : *gradient) value *= n_elements;
  d.kind = Pool2dDescription::Kind::average;
  UnitOutputs backward = run(backend, d, in, modes);
  backward.y = out.y;
  return backward;
}

UnitLengths lengths(const Conv2dDescription& d) {
  const double taps = d.kernel_size * d.kernel_size;
  const Shape y = d.y();
  return {taps * static_cast<double>(d.x[3]), taps * static_cast<double>(d.out_channels),
          static_cast<double>(y[0] * y[1] * y[2])};
}

UnitLengths lengths(const Pool2dDescription& d) {
  const double taps = d.kernel_size == 0 ? static_cast<double>(d.x[1] * d.x[2]) : d.kernel_size * d.kernel_size;
  return {taps, taps, 1};
}

UnitInputs rounded_to(DType dtype, UnitInputs in) {
  for (std::vector<float>* values : {&in.x, &in.dy, &in.added_dy, &in.weight, &in.residual, &in.added, &in.dx_before})
    *values = rounded_to(dtype, *values);
  return in;
}

void expect_within_rounding(const UnitOutputs& actual, const UnitOutputs& expected, const UnitOutputs& magnitude,
                            const UnitLengths& lengths, DType dtype) {
  // What surrounds a sum (scale, bias, residual, added gradient, x_hat, storing) is at most 16 roundings. Reductions to
  // fp64 add the errors of their elements; a square doubles them. In bf16, there are also three roundings to 8 bits: of
  // the input's z, of the data gradient, and of the result. In fp16 there are four to 11 bits: of scale and bias too.
  const double kAround = dtype == DType::bf16   ? 16 + 3 * kBf16Roundoff / kRoundoff
                         : dtype == DType::fp16 ? 16 + 4 * kFp16Roundoff / kRoundoff
                                                : 16;
  EXPECT_TRUE(within_rounding(actual.y, expected.y, magnitude.y, lengths.n_forward + kAround)) << "y";
  EXPECT_TRUE(within_rounding(actual.z, expected.z, magnitude.z, kAround)) << "z";
  EXPECT_TRUE(
      within_rounding(actual.statistics, expected.statistics, magnitude.statistics, 2 * (lengths.n_forward + kAround)))
      << "statistics";
  EXPECT_TRUE(within_rounding(actual.dx, expected.dx, magnitude.dx, lengths.n_data + kAround)) << "dx or dz";
  EXPECT_TRUE(within_rounding(actual.sums, expected.sums, magnitude.sums, lengths.n_data + kAround)) << "sums";
  EXPECT_TRUE(
      within_rounding(actual.residual_sums, expected.residual_sums, magnitude.residual_sums, lengths.n_data + kAround))
      << "residual sums";
  EXPECT_TRUE(within_rounding(actual.dweight, expected.dweight, magnitude.dweight, lengths.n_weight + kAround))
      << "dweight";
}

std::vector<std::optional<InputNormalization>> all_normalizations() {
  std::vector<std::optional<InputNormalization>> all{std::nullopt};
  for (Residual residual : {Residual::none, Residual::plain, Residual::normalized})
    for (bool relu : {true, false})
      for (bool store : {false, true}) all.push_back(InputNormalization{residual, relu, store});
  return all;
}

std::vector<UnitModes> all_modes() {
  std::vector<UnitModes> all;
  for (GradientMode dx : {GradientMode::overwrite, GradientMode::accumulate, GradientMode::skip})
    for (GradientMode dweight : {GradientMode::overwrite, GradientMode::accumulate, GradientMode::skip})
      for (int added : {0, 1, 2}) all.push_back({dx, dweight, added > 0, added == 2});
  return all;
}

std::string text(const std::optional<InputNormalization>& normalization) {
  if (!normalization) return "no normalisation";
  const char* residual = normalization->residual == Residual::none    ? "no residual"
                         : normalization->residual == Residual::plain ? "plain residual"
                                                                      : "normalised residual";
  return std::string("normalisation, ") + residual + (normalization->relu ? ", relu" : "") +
         (normalization->store ? ", stored" : "");
}

std::string text(const UnitModes& modes) {
  return "dx " + text(modes.dx) + ", dweight " + text(modes.dweight) +
         (modes.added ? (modes.added_is_dz ? ", added in place" : ", added") : "") +
         (modes.added_dy ? ", two gradients of y" : "");
}

}  // namespace lockstep::test
