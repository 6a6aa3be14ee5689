// Each op with kernels of its own gives the same results on every instruction set of this processor, up to rounding:
// the other tests run only the best one. normalization_test.cpp tests the passes of a normalisation.
#include "kernels/cpu/base/simd.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <vector>

#include "kernels/cpu/backend.h"
#include "lockstep/event.h"
#include "lockstep/ops/batch_norm.h"
#include "lockstep/ops/clip_norm.h"
#include "lockstep/ops/embedding.h"
#include "lockstep/ops/glu.h"
#include "lockstep/ops/linear_cross_entropy.h"
#include "lockstep/ops/optimizer.h"
#include "lockstep/ops/pool2d.h"
#include "lockstep/ops/rotary.h"
#include "lockstep/philox.h"
#include "test/support/tensor.h"

namespace lockstep::cpu {
namespace {

/// CPU ops run immediately, in the caller's thread.
class NoStream final : public Stream {
 public:
  void wait(const Event&) override {}
  void synchronize() override {}
};

template <typename Description>
auto plan(const Description& description) {
  static const std::unique_ptr<Backend> backend = make_backend({.device = "cpu", .threads = 1});
  return backend->make(description);
}

std::vector<float> random_values(std::size_t n, std::uint32_t stream) {
  const Philox philox(9, RandomPurpose::synthetic, stream, 0);
  std::vector<float> values(n);
  for (std::size_t i = 0; i < n; ++i) values[i] = static_cast<float>(2 * philox.uniform(i) - 1);
  return values;
}

/// Runs `compute` with each instruction set; all results must be within `tolerance` of the baseline's.
void expect_same_everywhere(const std::function<std::vector<float>()>& compute, float tolerance) {
  limit_isa(Isa::baseline);
  const std::vector<float> expected = compute();
  for (const Isa isa : {Isa::avx2, Isa::avx512}) {
    if (isa > detect_isa()) continue;
    limit_isa(isa);
    const std::vector<float> found = compute();
    ASSERT_EQ(found.size(), expected.size());
    for (std::size_t i = 0; i < found.size(); ++i)
      ASSERT_NEAR(found[i], expected[i], tolerance) << "element " << i << ", instruction set " << static_cast<int>(isa);
  }
  limit_isa(Isa::avx512);
}

// Results are below 8 and are computed by a few fp32 operations, fused or not.
constexpr float kTolerance = 4e-6f;

TEST(Simd, PoolingIsTheSame) {
  for (const auto kind : {Pool2dDescription::Kind::max, Pool2dDescription::Kind::average})
    for (const Layout layout : {Layout::nhwc, Layout::nchw16c})
      for (const bool normalized : {false, true}) {
        Pool2dDescription d{.kind = kind, .x = {2, 7, 6, layout == Layout::nhwc ? 21 : 32}};
        d.x_layout = d.y_layout = layout;
        if (normalized) d.normalization = InputNormalization{.residual = InputNormalization::Residual::plain};
        const std::size_t n_x = static_cast<std::size_t>(d.x.n_elements());
        const std::size_t n_y = static_cast<std::size_t>(d.y().n_elements()), c = static_cast<std::size_t>(d.x[3]);
        const auto x = random_values(n_x, 1), r = random_values(n_x, 2), dy = random_values(n_y, 3);
        const auto scale_bias = random_values(2 * c, 4), mean_inverse_stddev = random_values(2 * c, 5);
        expect_same_everywhere(
            [&] {
              NoStream stream;
              const auto op = plan(d);
              std::vector<char> workspace(op->memory_requirements().backward_workspace_bytes),
                  saved(op->memory_requirements().saved_bytes);
              const OpMemory memory{workspace.data(), saved.data()};
              std::vector<float> y(n_y), dx(n_x);
              std::vector<double> sums(2 * c);
              const NormalizationForward normalization{.scale_bias = scale_bias.data(), .residual = r.data()};
              op->forward({.x = x.data(), .y = y.data(), .normalization = normalization}, memory, stream);
              Pool2d::Backward backward;
              backward.dy = dy.data();
              backward.x = x.data();
              backward.dx = dx.data();
              backward.normalization = normalization;
              backward.gradient.mean_inverse_stddev = mean_inverse_stddev.data();
              backward.gradient.dz = dx.data();
              backward.gradient.sums = sums.data();
              op->backward(backward, memory, stream);
              y.insert(y.end(), dx.begin(), dx.end());
              return y;
            },
            kTolerance);
      }
}

TEST(Simd, BatchNormBackwardIsTheSame) {
  for (const std::int64_t c : {3, 64, 70}) {
    const BatchNormDescription d{.x = {2, 5, 3, c}, .n_rows = 30};
    const std::size_t n = static_cast<std::size_t>(d.x.n_elements()), n_channels = static_cast<std::size_t>(c);
    const auto x = random_values(n, 1), dz = random_values(n, 2), gamma = random_values(n_channels, 3);
    const auto mean_inverse_stddev = random_values(2 * n_channels, 4);
    const std::vector<double> sums(2 * n_channels, 5.0);
    expect_same_everywhere(
        [&] {
          NoStream stream;
          const auto op = plan(d);
          std::vector<char> workspace(op->memory_requirements().backward_workspace_bytes);
          std::vector<float> dx(n), dgamma(n_channels), dbeta(n_channels);
          op->backward({.sums = sums.data(),
                        .local_sums = sums.data(),
                        .dz = dz.data(),
                        .x = x.data(),
                        .gamma = gamma.data(),
                        .mean_inverse_stddev = mean_inverse_stddev.data(),
                        .dx = dx.data(),
                        .dgamma = dgamma.data(),
                        .dbeta = dbeta.data()},
                       {workspace.data(), nullptr}, stream);
          return dx;
        },
        kTolerance);
  }
}

TEST(Simd, OptimizersAndNormsAreTheSame) {
  const std::size_t n = 40003;
  const auto w = random_values(n, 1), g = random_values(n, 2);
  for (const auto kind :
       {OptimizerDescription::Kind::sgd, OptimizerDescription::Kind::adamw, OptimizerDescription::Kind::lars})
    for (const bool nesterov : {false, true}) {
      OptimizerDescription d{.kind = kind, .momentum = 0.9f, .nesterov = nesterov, .weight_decay = 0.01f};
      d.segments = {{0, 17, false}, {64, n - 64, true}};
      d.n_elements = n;
      d.weight_dtype = DType::bf16;
      expect_same_everywhere(
          [&] {
            NoStream stream;
            StepScalars scalars{.learning_rate = 0.1f, .adam_correction1 = 10, .adam_correction2 = 1000};
            double norm = 0;
            const auto clip = plan(ClipNormDescription{.n_elements = n, .max_norm = 3});
            std::vector<double> tile_sums(n_tiles_of(n));
            clip->sum_tiles({.gradients = g.data(), .tile_sums = tile_sums.data(), .range = {0, n}}, stream);
            const LossSums sums{.loss = 1, .count = 1, .weight = 1};
            clip->apply({.tile_sums = tile_sums.data(), .sums = &sums, .scalars = &scalars, .norm = &norm}, stream);
            EXPECT_GT(norm, 3);
            std::vector<float> parameters = w, state(2 * n);
            const auto op = plan(d);
            std::vector<char> norms(op->memory_requirements().forward_workspace_bytes);
            std::vector<std::uint16_t> weights(n, 0xffff);
            op->apply({.parameters = parameters.data(),
                       .weights = weights.data(),
                       .gradients = g.data(),
                       .state = state.data(),
                       .scalars = &scalars},
                      {norms.data(), nullptr}, stream);
            EXPECT_EQ(parameters[20], w[20]);  // between segments
            std::vector<std::uint16_t> rounded = test::bf16_bits(parameters);
            std::fill(rounded.begin() + 17, rounded.begin() + 64, 0xffff);
            EXPECT_EQ(weights, rounded);
            parameters.push_back(static_cast<float>(norm / 1000));
            parameters.push_back(scalars.clip_coefficient);
            return parameters;
          },
          kTolerance);
    }
}

TEST(Simd, RotaryPositionsAreTheSame) {
  const RotaryDescription d{.rows = 3, .heads = 2, .kv_heads = 1, .head_dim = 42, .max_positions = 9, .norm = true};
  const std::vector<std::int32_t> positions{0, 5, 8};
  const std::size_t n = static_cast<std::size_t>(d.rows * d.row_size());
  const auto x = random_values(n, 1), dy = random_values(n, 2), table = random_values(9 * 42, 3);
  const auto q = random_values(42, 4), k = random_values(42, 5);
  expect_same_everywhere(
      [&] {
        NoStream stream;
        const auto op = plan(d);
        std::vector<char> workspace(op->memory_requirements().backward_workspace_bytes);
        const OpMemory memory{workspace.data(), nullptr};
        std::vector<float> y(n), dx(n), dq(42), dk(42);
        op->forward({.x = x.data(),
                     .positions = positions.data(),
                     .table = table.data(),
                     .q_norm = q.data(),
                     .k_norm = k.data(),
                     .y = y.data()},
                    memory, stream);
        op->backward({.dy = dy.data(),
                      .x = x.data(),
                      .positions = positions.data(),
                      .table = table.data(),
                      .q_norm = q.data(),
                      .k_norm = k.data(),
                      .dx = dx.data(),
                      .dq_norm = dq.data(),
                      .dk_norm = dk.data()},
                     memory, stream);
        for (const auto* more : {&dx, &dq, &dk}) y.insert(y.end(), more->begin(), more->end());
        return y;
      },
      kTolerance);
}

TEST(Simd, EmbeddingsAndGatesAreTheSame) {
  const std::int64_t rows = 11, width = 37;
  const std::vector<std::int32_t> ids{3, 1, 3, -1, 0, 3, 2, 2, 5, 1, 0};
  const std::size_t n = static_cast<std::size_t>(rows * width);
  const auto x = random_values(2 * n, 1), dy = random_values(n, 2);
  expect_same_everywhere(
      [&] {
        NoStream stream;
        std::vector<float> y(n), dx(2 * n), dweight(5 * static_cast<std::size_t>(width));
        const auto swiglu = plan(GluDescription{.rows = rows, .width = width});
        swiglu->forward({.x = x.data(), .y = y.data()}, {}, stream);
        swiglu->backward({.x = x.data(), .dy = dy.data(), .dx = dx.data()}, {}, stream);
        const auto embedding = plan(EmbeddingDescription{.rows = rows, .vocabulary = 5, .width = width});
        std::vector<char> workspace(embedding->memory_requirements().backward_workspace_bytes);
        embedding->backward({.ids = ids.data(), .dy = dy.data(), .dweight = dweight.data()},
                            {workspace.data(), nullptr}, stream);
        for (const auto* more : {&dx, &dweight}) y.insert(y.end(), more->begin(), more->end());
        return y;
      },
      kTolerance);
}

TEST(Simd, TheLossOfTheLastMatmulIsTheSame) {
  const LinearCrossEntropyDescription d{.rows = 5, .width = 8, .vocabulary = 1100};
  const std::vector<std::int32_t> targets{0, 1099, -1, 17, 400};
  const auto x = random_values(5 * 8, 1), weight = random_values(1100 * 8, 2);
  expect_same_everywhere(
      [&] {
        NoStream stream;
        const auto op = plan(d);
        std::vector<float> workspace(op->memory_requirements().forward_workspace_bytes / sizeof(float) + 16);
        void* const aligned =
            reinterpret_cast<void*>((reinterpret_cast<std::uintptr_t>(workspace.data()) + 63) / 64 * 64);
        const StepScalars scalars{.loss_weight = 1};
        LossSums sums;
        std::vector<float> losses(5), dx(x.size()), dweight(weight.size());
        op->forward({.x = x.data(),
                     .weight = weight.data(),
                     .targets = targets.data(),
                     .sums = &sums,
                     .losses = losses.data(),
                     .scalars = &scalars,
                     .dx = dx.data(),
                     .dweight = dweight.data()},
                    {aligned, nullptr}, stream);
        EXPECT_EQ(sums.count, 4);
        for (const auto* more : {&dx, &dweight}) losses.insert(losses.end(), more->begin(), more->end());
        return losses;
      },
      kTolerance);
}

}  // namespace
}  // namespace lockstep::cpu
