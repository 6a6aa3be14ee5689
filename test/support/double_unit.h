// A convolution or pooling evaluated in double, for finite differences: loss = <dy, y> + <added, z>, and for pooling
// <dy + added_dy, y> + <added, z>.
// The batch norm's gamma and beta enter as shifts of scale = gamma * inverse_stddev and bias = beta - mean * scale, so
// that the reductions, sum dz and sum dz * x_hat, are gradients of the loss too.
#pragma once

#include <gtest/gtest.h>

#include <type_traits>
#include <vector>

#include "lockstep/ops/conv2d.h"
#include "test/reference/conv2d.h"
#include "test/reference/pool2d.h"
#include "test/support/finite_difference.h"
#include "test/support/tensor.h"
#include "test/support/unit.h"

namespace lockstep::test {

template <typename Description>
struct DoubleUnit {
  /// If there is a normalisation, its result must be stored: the loss reads z.
  DoubleUnit(const Description& description, const UnitInputs& in)
      : d(description),
        n_channels(static_cast<std::size_t>(d.x[3])),
        x(to_double(in.x)),
        weight(to_double(in.weight)),
        dy(to_double(in.dy)),
        added_dy(to_double(in.added_dy)),
        residual(to_double(in.residual)),
        added(to_double(in.added)),
        scale_bias(to_double(in.scale_bias)),
        mean_inverse_stddev(to_double(in.mean_inverse_stddev)),
        residual_scale_bias(to_double(in.residual_scale_bias)),
        residual_mean_inverse_stddev(to_double(in.residual_mean_inverse_stddev)),
        gamma_shift(n_channels),
        beta_shift(n_channels),
        residual_gamma_shift(n_channels),
        residual_beta_shift(n_channels),
        y(dy.size()),
        z(x.size()),
        dx(x.size()),
        dweight(weight.size()),
        sums(2 * n_channels),
        residual_sums(2 * n_channels) {}

  double loss() {
    const auto first = shifted(scale_bias, mean_inverse_stddev, gamma_shift, beta_shift);
    const auto second =
        shifted(residual_scale_bias, residual_mean_inverse_stddev, residual_gamma_shift, residual_beta_shift);
    forward({first.data(), residual.data(), second.data(), z.data()});
    return dot(dy, y) + (added_dy.empty() ? 0.0 : dot(added_dy, y)) + (added.empty() ? 0.0 : dot(added, z));
  }

  /// Compares the reference's backward with finite differences of its forward, for everything that the unit reads.
  void expect_gradients_match() {
    backward({scale_bias.data(), residual.data(), residual_scale_bias.data(), z.data()},
             {mean_inverse_stddev.data(), residual_mean_inverse_stddev.data(), added.data(), dx.data(), sums.data(),
              residual_sums.data()});
    const auto f = [this] { return loss(); };
    if (!weight.empty()) {
      EXPECT_TRUE(gradient_matches(weight, dweight, f)) << "dweight";
    }
    // dz is the gradient before the activation: the gradient of x is scale * dz, that of a residual is dz or scale2 *
    // dz.
    EXPECT_TRUE(gradient_matches(x, scaled(dx, scale_bias), f)) << "dx, or dz through x";
    if (!residual.empty()) {
      EXPECT_TRUE(gradient_matches(residual, scaled(dx, residual_scale_bias), f)) << "dz through the residual";
    }
    if (!d.normalization) return;
    EXPECT_TRUE(gradient_matches(beta_shift, row(sums, 0), f)) << "sum dz";
    EXPECT_TRUE(gradient_matches(gamma_shift, row(sums, 1), f)) << "sum dz * x_hat";
    if (residual_scale_bias.empty()) return;
    EXPECT_TRUE(gradient_matches(residual_beta_shift, row(residual_sums, 0), f)) << "sum dz, residual";
    EXPECT_TRUE(gradient_matches(residual_gamma_shift, row(residual_sums, 1), f)) << "sum dz * r_hat";
  }

  Description d;
  std::size_t n_channels;
  std::vector<double> x, weight, dy, added_dy, residual, added;
  std::vector<double> scale_bias, mean_inverse_stddev, residual_scale_bias, residual_mean_inverse_stddev;
  std::vector<double> gamma_shift, beta_shift, residual_gamma_shift, residual_beta_shift;  // all zero
  std::vector<double> y, z, dx, dweight, sums, residual_sums;

 private:
  void forward(const reference::PendingForward<double>& normalization) {
    if constexpr (std::is_same_v<Description, Conv2dDescription>) {
      std::vector<double> statistics(static_cast<std::size_t>(2 * d.out_channels));
      reference::conv2d_forward<double>(d, {x.data(), weight.data(), y.data(), statistics.data(), normalization});
    } else {
      reference::pool2d_forward<double>(d, {x.data(), y.data(), normalization});
    }
  }

  void backward(const reference::PendingForward<double>& normalization,
                const reference::PendingBackward<double>& gradient) {
    constexpr auto kOverwrite = GradientMode::overwrite;
    if constexpr (std::is_same_v<Description, Conv2dDescription>)
      reference::conv2d_backward<double>(d, {dy.data(), x.data(), weight.data(), dweight.data(), kOverwrite, dx.data(),
                                             kOverwrite, normalization, gradient});
    else
      reference::pool2d_backward<double>(
          d, {dy.data(), added_dy.data(), x.data(), dx.data(), kOverwrite, normalization, gradient});
  }

  std::vector<double> shifted(std::vector<double> both, const std::vector<double>& mean_inverse,
                              const std::vector<double>& gamma, const std::vector<double>& beta) const {
    for (std::size_t c = 0; c < both.size() / 2; ++c) {
      both[c] += gamma[c] * mean_inverse[n_channels + c];
      both[n_channels + c] += beta[c] - mean_inverse[c] * gamma[c] * mean_inverse[n_channels + c];
    }
    return both;
  }

  std::vector<double> scaled(std::vector<double> values, const std::vector<double>& scale) const {
    for (std::size_t i = 0; i < values.size() && !scale.empty(); ++i) values[i] *= scale[i % n_channels];
    return values;
  }

  std::vector<double> row(const std::vector<double>& both, std::size_t number) const {
    const auto begin = both.begin() + static_cast<std::ptrdiff_t>(number * n_channels);
    return {begin, begin + static_cast<std::ptrdiff_t>(n_channels)};
  }
};

}  // namespace lockstep::test
