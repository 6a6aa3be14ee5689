// SGD, AdamW and LARS of the backends and of the reference, compared over several steps with PyTorch's formulas, which
// are written out here in double (torch/optim/sgd.py, _single_tensor_sgd, and torch/optim/adamw.py,
// _single_tensor_adamw; LARS as in pl_bolts/optimizers/lars.py: the scaled gradient of a tensor is passed to SGD).
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <span>
#include <string>

#include "lockstep/bf16.h"
#include "lockstep/ops/optimizer.h"
#include "test/reference/backend.h"
#include "test/support/compare.h"
#include "test/support/device.h"
#include "test/support/tensor.h"

namespace lockstep::test {
namespace {

constexpr int kSteps = 6;
constexpr std::size_t kElements = 1200;

/// Odd sizes, gaps between segments (padding that must not be touched), with and without decay.
const std::vector<ParameterSegment> kSegments = {
    {0, 1, true}, {16, 37, false}, {64, 513, true}, {640, 3, false}, {656, 500, true}};

struct Case {
  std::string name;
  OptimizerDescription::Kind kind;
  float momentum = 0;
  bool nesterov = false;
  float weight_decay = 0;
  float clip_coefficient = 1;
};

constexpr auto kSgd = OptimizerDescription::Kind::sgd;
constexpr auto kAdamw = OptimizerDescription::Kind::adamw;
constexpr auto kLars = OptimizerDescription::Kind::lars;
const Case kCases[] = {{"sgd", kSgd},
                       {"sgd with decay", kSgd, 0, false, 5e-2f},
                       {"momentum", kSgd, 0.9f},
                       {"momentum, decay, clipped", kSgd, 0.9f, false, 5e-4f, 0.25f},
                       {"nesterov", kSgd, 0.9f, true},
                       {"nesterov, decay", kSgd, 0.8f, true, 1e-2f},
                       {"adamw", kAdamw},
                       {"adamw, decay, clipped", kAdamw, 0, false, 1e-1f, 0.5f},
                       {"lars", kLars},
                       {"lars, momentum, decay, clipped", kLars, 0.9f, false, 1e-1f, 0.25f},
                       {"lars, nesterov, decay", kLars, 0.8f, true, 1e-2f}};

OptimizerDescription describe(const Case& c) {
  OptimizerDescription d;
  d.kind = c.kind;
  d.momentum = c.momentum;
  d.nesterov = c.nesterov;
  d.weight_decay = c.weight_decay;
  d.trust_coefficient = 0.5f;  // large enough to have a visible effect
  d.segments = kSegments;
  d.n_elements = kElements;
  return d;
}

double learning_rate(int step) { return static_cast<double>(static_cast<float>(0.1 / (1 + step))); }
std::vector<float> gradient(int step) { return random_normal(kElements, static_cast<std::uint32_t>(10 + step)); }

/// One element through all steps, as in PyTorch.
double torch_sgd(const OptimizerDescription& d, double param, double decay, const std::function<double(int)>& grad_of) {
  double momentum_buffer = 0;
  for (int step = 0; step < kSteps; ++step) {
    double grad = grad_of(step);
    if (decay != 0) grad = grad + decay * param;
    if (d.momentum != 0) {
      momentum_buffer = step == 0 ? grad : double{d.momentum} * momentum_buffer + grad;
      grad = d.nesterov ? grad + double{d.momentum} * momentum_buffer : momentum_buffer;
    }
    param -= learning_rate(step) * grad;
  }
  return param;
}

double torch_adamw(const OptimizerDescription& d, double param, double decay,
                   const std::function<double(int)>& grad_of) {
  const double beta1 = d.beta1, beta2 = d.beta2, eps = d.epsilon;
  double exp_avg = 0, exp_avg_sq = 0;
  for (int step = 0; step < kSteps; ++step) {
    const double lr = learning_rate(step), grad = grad_of(step);
    param *= 1 - lr * decay;
    exp_avg += (grad - exp_avg) * (1 - beta1);
    exp_avg_sq = exp_avg_sq * beta2 + (1 - beta2) * grad * grad;
    const double bias_correction1 = 1 - std::pow(beta1, step + 1);
    const double bias_correction2 = 1 - std::pow(beta2, step + 1);
    const double denom = std::sqrt(exp_avg_sq) / std::sqrt(bias_correction2) + eps;
    param -= lr / bias_correction1 * exp_avg / denom;
  }
  return param;
}

/// A tensor through all steps; `params` are its elements, and `begin` is where its gradients begin.
void lars(const OptimizerDescription& d, bool adapts, std::size_t begin, std::span<double> params,
          double clip_coefficient) {
  std::vector<double> momentum_buffer(params.size());
  for (int step = 0; step < kSteps; ++step) {
    std::vector<double> grads = to_double(gradient(step));
    double p_norm = 0, g_norm = 0;
    for (std::size_t i = 0; i < params.size(); ++i) {
      grads[begin + i] *= clip_coefficient;
      p_norm += params[i] * params[i];
      g_norm += grads[begin + i] * grads[begin + i];
    }
    p_norm = std::sqrt(p_norm), g_norm = std::sqrt(g_norm);
    const double weight_decay = adapts ? d.weight_decay : 0;
    const double trust = d.trust_coefficient * p_norm / (g_norm + p_norm * weight_decay + double{d.epsilon});
    for (std::size_t i = 0; i < params.size(); ++i) {
      double d_p = grads[begin + i];
      if (adapts) d_p = (d_p + weight_decay * params[i]) * trust;
      momentum_buffer[i] = step == 0 ? d_p : double{d.momentum} * momentum_buffer[i] + d_p;
      if (d.momentum != 0) d_p = d.nesterov ? d_p + double{d.momentum} * momentum_buffer[i] : momentum_buffer[i];
      params[i] -= learning_rate(step) * d_p;
    }
  }
}

std::vector<double> torch_result(const Case& c, const std::vector<float>& initial) {
  const OptimizerDescription d = describe(c);
  std::vector<double> result = to_double(initial);
  if (c.kind == kLars) {
    for (const ParameterSegment& s : kSegments)
      lars(d, s.decay, s.begin, std::span(result).subspan(s.begin, s.n_elements), double{c.clip_coefficient});
    return result;
  }
  std::vector<std::vector<float>> gradients;
  for (int step = 0; step < kSteps; ++step) gradients.push_back(gradient(step));
  for (const ParameterSegment& segment : kSegments)
    for (std::size_t i = segment.begin; i < segment.begin + segment.n_elements; ++i) {
      const auto grad_of = [&](int step) {
        return double{c.clip_coefficient} * gradients[static_cast<std::size_t>(step)][i];
      };
      const double decay = segment.decay ? d.weight_decay : 0;
      result[i] =
          c.kind == kSgd ? torch_sgd(d, initial[i], decay, grad_of) : torch_adamw(d, initial[i], decay, grad_of);
    }
  return result;
}

struct Outputs {
  std::vector<float> parameters, state;
  std::vector<std::uint16_t> weights;  // of weight_dtype; empty in fp32
};

constexpr std::uint16_t kUnwritten = 0xbeef;

/// With `skips`, each step is repeated with NaN gradients, which must not be applied.
Outputs run(Backend& backend, const Case& c, const std::vector<float>& initial, bool skips = false,
            int n_steps = kSteps, DType weight_dtype = DType::fp32) {
  OptimizerDescription d = describe(c);
  d.weight_dtype = weight_dtype;
  Device device(backend);
  const auto op = backend.make(d);
  const OpMemory memory = device.op_memory(op->memory_requirements());
  const std::size_t n_state = static_cast<std::size_t>(d.n_states()) * kElements;
  Optimizer::Apply args;
  args.parameters = device.upload(initial);
  std::uint16_t* const weights =
      weight_dtype == DType::fp32 ? nullptr : device.upload(std::vector<std::uint16_t>(kElements, kUnwritten));
  args.weights = weights;
  auto* const state = n_state > 0 ? device.upload(std::vector<float>(n_state)) : nullptr;
  args.state = state;
  for (int step = 0; step < n_steps; ++step) {
    StepScalars scalars;
    scalars.learning_rate = static_cast<float>(learning_rate(step));
    scalars.clip_coefficient = c.clip_coefficient;
    scalars.adam_correction1 = static_cast<float>(1 / (1 - std::pow(double{d.beta1}, step + 1)));
    scalars.adam_correction2 = static_cast<float>(1 / (1 - std::pow(double{d.beta2}, step + 1)));
    args.gradients = device.upload(gradient(step));
    args.scalars = device.upload(std::vector<StepScalars>{scalars});
    op->apply(args, memory, device.stream());
    if (!skips) continue;
    scalars.is_applied = 0;
    scalars.clip_coefficient = std::numeric_limits<float>::quiet_NaN();
    args.gradients = device.upload(std::vector<float>(kElements, std::numeric_limits<float>::quiet_NaN()));
    args.scalars = device.upload(std::vector<StepScalars>{scalars});
    op->apply(args, memory, device.stream());
  }
  Outputs out;
  out.parameters = device.download(args.parameters, kElements);
  if (state) out.state = device.download(state, n_state);
  if (weights) out.weights = device.download(weights, kElements);
  return out;
}

/// Two shards, each with its own states and, with 16 bits, its own masters and gradients, give the same bits as the
/// whole.
TEST(Optimizer, ShardsGiveTheBitsOfTheWhole) {
  const std::vector<float> initial = random_normal(kElements, 1);
  const std::size_t cut = 64 + 256;  // in the third segment
  reference::ReferenceBackend reference;
  std::vector<std::pair<std::string, Backend*>> backends{{"reference", &reference}};
  for (auto& [name, backend] : tested_backends()) backends.emplace_back(name, backend.get());
  for (const DType weight_dtype : {DType::fp32, DType::bf16})
    for (const Case& c : kCases) {
      if (c.kind == kLars) continue;
      for (auto& [name, backend] : backends) {
        const Outputs whole = run(*backend, c, initial, false, 1, weight_dtype);
        Outputs merged{.parameters = initial, .state = {}, .weights = {}};
        for (const ElementRange& range : {ElementRange{0, cut}, ElementRange{cut, kElements - cut}}) {
          OptimizerDescription d = describe(c);
          d.weight_dtype = weight_dtype;
          d.parameters_are_sharded = d.gradients_are_sharded = weight_dtype != DType::fp32;
          d.segments = cut_to(kSegments, range);
          d.n_elements = range.n_elements + 16;
          for (ParameterSegment& segment : d.segments) segment.stored_begin = segment.begin - range.begin + 16;
          Device device(*backend);
          const auto op = backend->make(d);
          const std::size_t n_state = static_cast<std::size_t>(d.n_states()) * d.n_elements;
          const auto shard_of = [&](const std::vector<float>& all) {
            std::vector<float> mine(16 + range.n_elements);
            std::copy_n(all.begin() + static_cast<std::ptrdiff_t>(range.begin), range.n_elements, mine.begin() + 16);
            return mine;
          };
          StepScalars scalars;
          scalars.learning_rate = static_cast<float>(learning_rate(0));
          scalars.clip_coefficient = c.clip_coefficient;
          scalars.adam_correction1 = static_cast<float>(1 / (1 - d.beta1));
          scalars.adam_correction2 = static_cast<float>(1 / (1 - d.beta2));
          Optimizer::Apply args;
          args.parameters = device.upload(d.parameters_are_sharded ? shard_of(initial) : initial);
          std::uint16_t* const weights = device.upload(std::vector<std::uint16_t>(kElements, kUnwritten));
          args.weights = weights;
          args.state = n_state > 0 ? device.upload(std::vector<float>(n_state)) : nullptr;
          args.gradients = device.upload(d.gradients_are_sharded ? shard_of(gradient(0)) : gradient(0));
          args.scalars = device.upload(std::vector<StepScalars>{scalars});
          op->apply(args, device.op_memory(op->memory_requirements()), device.stream());
          const std::size_t shift = d.parameters_are_sharded ? 16 : range.begin;
          const std::vector<float> updated = device.download(args.parameters, shift + range.n_elements);
          std::copy_n(updated.begin() + static_cast<std::ptrdiff_t>(shift), range.n_elements,
                      merged.parameters.begin() + static_cast<std::ptrdiff_t>(range.begin));
          if (weight_dtype == DType::fp32) continue;
          const std::vector<std::uint16_t> rounded = device.download(weights, kElements);
          for (std::size_t i = 0; i < kElements; ++i) {
            const bool is_mine = i >= range.begin && i < range.begin + range.n_elements;
            EXPECT_EQ(rounded[i], is_mine ? whole.weights[i] : kUnwritten) << name << ", " << c.name << ", " << i;
          }
        }
        EXPECT_EQ(merged.parameters, whole.parameters) << name << ", " << c.name;
      }
    }
}

TEST(Optimizer, FollowsPyTorch) {
  const std::vector<float> initial = random_normal(kElements, 1);
  reference::ReferenceBackend reference;
  std::vector<std::pair<std::string, Backend*>> backends{{"reference", &reference}};
  for (auto& [name, backend] : tested_backends()) backends.emplace_back(name, backend.get());
  for (const Case& c : kCases) {
    const std::vector<double> expected = torch_result(c, initial);
    for (auto& [name, backend] : backends) {
      // Parameters, moments and corrections are rounded to fp32 in each of 6 steps, with about ten roundings per step,
      // and momentum carries the errors forward: 60 * 2^-24 = 4e-6, for values up to 4.
      EXPECT_TRUE(near(run(*backend, c, initial).parameters, expected, 4e-6)) << name << ", " << c.name;
    }
  }
}

/// Padding between segments is unchanged, in both parameters and state.
TEST(Optimizer, LeavesPaddingUnchanged) {
  const std::vector<float> initial = random_normal(kElements, 1);
  std::vector<bool> inside(kElements);
  for (const ParameterSegment& segment : kSegments)
    for (std::size_t i = 0; i < segment.n_elements; ++i) inside[segment.begin + i] = true;
  for (const Case& c : kCases)
    for (auto& [name, backend] : tested_backends()) {
      const Outputs out = run(*backend, c, initial);
      for (std::size_t i = 0; i < kElements; ++i) {
        if (inside[i]) continue;
        EXPECT_EQ(out.parameters[i], initial[i]) << name << ", " << c.name << ", element " << i;
        for (std::size_t state = i; state < out.state.size(); state += kElements)
          EXPECT_EQ(out.state[state], 0.0f) << name << ", " << c.name << ", element " << i;
      }
    }
}

std::vector<Backend*> all_backends(Backend& reference) {
  std::vector<Backend*> all{&reference};
  for (auto& [name, backend] : tested_backends()) all.push_back(backend.get());
  return all;
}

TEST(Optimizer, ASkippedStepChangesNothing) {
  const std::vector<float> initial = random_normal(kElements, 1);
  reference::ReferenceBackend reference;
  for (const Case& c : kCases)
    for (Backend* backend : all_backends(reference)) {
      const Outputs plain = run(*backend, c, initial), skipping = run(*backend, c, initial, true);
      EXPECT_EQ(plain.parameters, skipping.parameters) << backend->name() << ", " << c.name;
      EXPECT_EQ(plain.state, skipping.state) << backend->name() << ", " << c.name;
    }
}

/// The weights in bf16 and fp16 are the new parameters, rounded; parameters and state do not depend on whether there
/// are such weights. A skipped step writes none, and nothing is written between segments.
TEST(Optimizer, WritesTheRoundedParameters) {
  const std::vector<float> initial = random_normal(kElements, 1);
  std::vector<bool> inside(kElements);
  for (const ParameterSegment& segment : kSegments)
    for (std::size_t i = 0; i < segment.n_elements; ++i) inside[segment.begin + i] = true;
  reference::ReferenceBackend reference;
  for (const Case& c : kCases)
    for (Backend* backend : all_backends(reference))
      for (const DType dtype : {DType::bf16, DType::fp16}) {
        if (!computes_in(*backend, dtype)) continue;
        SCOPED_TRACE(backend->name() + ", " + c.name + ", " + std::string(name(dtype)));
        const Outputs without = run(*backend, c, initial), out = run(*backend, c, initial, false, kSteps, dtype);
        EXPECT_EQ(out.parameters, without.parameters);
        EXPECT_EQ(out.state, without.state);
        std::vector<std::uint16_t> rounded =
            dtype == DType::bf16 ? bf16_bits(out.parameters) : fp16_bits(out.parameters);
        for (std::size_t i = 0; i < kElements; ++i)
          if (!inside[i]) rounded[i] = kUnwritten;
        EXPECT_EQ(out.weights, rounded);
        EXPECT_EQ(run(*backend, c, initial, true, kSteps, dtype).weights, rounded);
      }
}

/// A type of numbers in memory, with random values of it.
struct Stored {
  DType dtype;
  std::vector<float> values;
  Stored(DType dtype, const std::vector<float>& values) : dtype(dtype), values(rounded_to(dtype, values)) {}
};

/// The bf16 number that `value` is rounded to with the random bits of an element.
float rounded_by(const OptimizerDescription& d, std::uint32_t step, std::size_t element, RoundedValue what,
                 double value) {
  const std::uint32_t both = random_bits(d.seed, step, element / 8, what)[element % 8 / 2];
  const std::uint16_t bits =
      round_stochastically(static_cast<float>(value), element % 2 == 0 ? both & 0xffff : both >> 16);
  return to_float(Bf16{bits});
}

/// Gradients, moments and weights in bf16: what fp32 would give, rounded by the random bits of each element, which do
/// not depend on where the arenas begin.
TEST(Optimizer, RoundsBf16StateStochastically) {
  constexpr std::size_t kFirst = 64, kStep = 7;
  const std::vector<ParameterSegment> segments = {
      {.begin = 64, .n_elements = 1}, {.begin = 80, .n_elements = 37}, {.begin = 128, .n_elements = 4101}};
  const std::size_t n = 128 + 4112 - kFirst;
  const auto normal = [&](std::uint32_t seed) { return random_normal(static_cast<std::int64_t>(n), seed); };
  for (auto& [name, backend] : tested_backends())
    for (int choice = 1; choice < 8; ++choice) {
      if (!computes_in(*backend, DType::bf16)) continue;
      const auto type = [&](int bit) { return (choice >> bit & 1) != 0 ? DType::bf16 : DType::fp32; };
      OptimizerDescription d{.kind = kAdamw,
                             .weight_decay = 0.1f,
                             .segments = segments,
                             .n_elements = n,
                             .weight_dtype = DType::bf16,
                             .gradient_dtype = type(0),
                             .state_dtype = type(1),
                             .has_masters = type(2) == DType::fp32,
                             .seed = 5,
                             .first = kFirst};
      for (ParameterSegment& segment : d.segments) segment.stored_begin = segment.begin - kFirst;
      SCOPED_TRACE(fmt::format("{}, {}", name, optimizer_text(d)));
      const Stored weights(type(2), normal(1)), gradients(type(0), normal(2)), first(type(1), normal(3)),
          second(type(1), absolute(normal(4)));
      std::vector<float> moments = first.values;
      moments.insert(moments.end(), second.values.begin(), second.values.end());
      Device device(*backend);
      StepScalars scalars;
      scalars.learning_rate = 0.01f;
      scalars.clip_coefficient = 0.5f;
      scalars.adam_correction1 = 2;
      scalars.adam_correction2 = 3;
      scalars.step = kStep;
      float* const masters = d.has_masters ? device.upload(weights.values) : nullptr;
      void* const narrow = device.upload_as(DType::bf16, weights.values);
      void* const state = device.upload_as(d.state_dtype, moments);
      const auto op = backend->make(d);
      op->apply({.parameters = masters,
                 .weights = narrow,
                 .gradients = device.upload_as(d.gradient_dtype, gradients.values),
                 .state = state,
                 .scalars = device.upload(std::vector<StepScalars>{scalars})},
                device.op_memory(op->memory_requirements()), device.stream());
      const std::vector<float> new_weights =
          masters ? device.download(masters, n) : device.download_as(DType::bf16, narrow, n);
      const std::vector<float> new_moments = device.download_as(d.state_dtype, state, 2 * n);
      const auto expect = [&](float actual, DType dtype, std::size_t i, RoundedValue what, double exact) {
        const double error = 8 * kRoundoff * (std::abs(exact) + 1);  // some roundings of terms near 1
        if (dtype == DType::fp32) {
          ASSERT_NEAR(actual, exact, error) << i;
        } else {
          ASSERT_LE(rounded_by(d, kStep, kFirst + i, what, exact - error), actual) << i;
          ASSERT_GE(rounded_by(d, kStep, kFirst + i, what, exact + error), actual) << i;
        }
      };
      for (const ParameterSegment& segment : segments)
        for (std::size_t i = segment.begin - kFirst; i < segment.begin - kFirst + segment.n_elements; ++i) {
          const double g = double{gradients.values[i]} * 0.5;
          const double m = d.beta1 * first.values[i] + (1 - d.beta1) * g;
          const double v = d.beta2 * second.values[i] + (1 - d.beta2) * g * g;
          const double w = weights.values[i] * (1 - 0.01 * 0.1) - 0.01 * m * 2 / (std::sqrt(v * 3) + 1e-8);
          expect(new_moments[i], d.state_dtype, i, RoundedValue::first_moment, m);
          expect(new_moments[n + i], d.state_dtype, i, RoundedValue::second_moment, v);
          expect(new_weights[i], type(2), i, RoundedValue::weight, w);
        }
      const std::size_t padding = 100;  // between the last two segments
      EXPECT_EQ(new_weights[padding - kFirst + 20], weights.values[padding - kFirst + 20]);
    }
}

/// A second moment that loses a thousandth in each step decays as in fp32, on average. Rounded to nearest, it would not
/// change at all.
TEST(Optimizer, SmallChangesAreNotLost) {
  constexpr std::size_t kN = 4000;
  constexpr int kManySteps = 300;
  for (auto& [name, backend] : tested_backends()) {
    if (!computes_in(*backend, DType::bf16)) continue;
    const OptimizerDescription d{.kind = kAdamw,
                                 .segments = {{.begin = 0, .n_elements = kN}},
                                 .n_elements = kN,
                                 .weight_dtype = DType::bf16,
                                 .state_dtype = DType::bf16,
                                 .has_masters = false};
    Device device(*backend);
    const auto op = backend->make(d);
    std::vector<float> moments(2 * kN, 0);
    std::fill(moments.begin() + kN, moments.end(), 1.0f);
    void* const state = device.upload_as(DType::bf16, moments);
    Optimizer::Apply args{.weights = device.upload_as(DType::bf16, std::vector<float>(kN, 1)),
                          .gradients = device.upload(std::vector<float>(kN)),
                          .state = state};
    for (std::uint32_t step = 0; step < kManySteps; ++step) {
      args.scalars = device.upload(std::vector<StepScalars>{{.step = step}});
      op->apply(args, device.op_memory(op->memory_requirements()), device.stream());
    }
    const std::vector<float> after = device.download_as(DType::bf16, state, 2 * kN);
    double mean = 0;
    for (std::size_t i = kN; i < 2 * kN; ++i) mean += after[i] / double{kN};
    // Each step's rounding has a standard deviation of at most half of 2^-8: over the steps and elements, 0.0006.
    EXPECT_NEAR(mean, std::pow(0.999, kManySteps), 0.003) << name;
  }
}

/// Ties are rounded to even, both in the vector loop of a kernel and in its remainder. A step with learning rate 0
/// leaves the parameters unchanged.
TEST(Optimizer, RoundsTiesToEven) {
  // For each type: a tie whose even neighbour is below it, one whose even neighbour is above it, and a value just above
  // a tie.
  const std::vector<float> bf16_ties{1 + 0x1p-8f, 1 + 3 * 0x1p-8f, 1 + 0x1p-8f + 0x1p-20f, -1 - 3 * 0x1p-8f};
  const std::vector<float> fp16_ties{1 + 0x1p-11f, 1 + 3 * 0x1p-11f, 1 + 0x1p-11f + 0x1p-20f, -1 - 3 * 0x1p-11f};
  const std::vector<std::uint16_t> bf16_expected{0x3f80, 0x3f82, 0x3f81, 0xbf82};
  const std::vector<std::uint16_t> fp16_expected{0x3c00, 0x3c02, 0x3c01, 0xbc02};
  constexpr std::size_t kCopies = 21;  // more than a vector, with a remainder
  reference::ReferenceBackend reference;
  for (Backend* backend : all_backends(reference))
    for (const auto kind : {kSgd, kAdamw})
      for (const DType dtype : {DType::bf16, DType::fp16}) {
        if (!computes_in(*backend, dtype)) continue;
        std::vector<float> parameters;
        std::vector<std::uint16_t> expected;
        for (std::size_t i = 0; i < kCopies; ++i) {
          const auto& ties = dtype == DType::bf16 ? bf16_ties : fp16_ties;
          const auto& rounded = dtype == DType::bf16 ? bf16_expected : fp16_expected;
          parameters.insert(parameters.end(), ties.begin(), ties.end());
          expected.insert(expected.end(), rounded.begin(), rounded.end());
        }
        parameters.pop_back();
        expected.pop_back();
        const std::size_t n = parameters.size();
        Device device(*backend);
        const auto op = backend->make(
            OptimizerDescription{.kind = kind, .segments = {{0, n, true}}, .n_elements = n, .weight_dtype = dtype});
        std::uint16_t* const weights = device.garbage<std::uint16_t>(n);
        op->apply({.parameters = device.upload(parameters),
                   .weights = weights,
                   .gradients = device.upload(std::vector<float>(n, 1.0f)),
                   .state = device.upload(std::vector<float>(2 * n)),
                   .scalars = device.upload(std::vector<StepScalars>{{.learning_rate = 0}})},
                  device.op_memory(op->memory_requirements()), device.stream());
        EXPECT_EQ(device.download(weights, n), expected) << backend->name() << ", " << name(dtype);
      }
}

/// Gradients of zero and weights of zero have no trust ratio: LARS updates them as SGD does.
TEST(Optimizer, LarsUpdatesZeroWeightsAsSgdDoes) {
  const Case lars_case{"lars", kLars, 0.9f}, sgd_case{"sgd", kSgd, 0.9f};
  reference::ReferenceBackend reference;
  for (Backend* backend : all_backends(reference)) {
    const std::vector<float> zeros(kElements);
    EXPECT_EQ(run(*backend, lars_case, zeros, false, 1).parameters, run(*backend, sgd_case, zeros, false, 1).parameters)
        << backend->name();
  }
}

/// Norms of a tensor of several blocks, which threads share.
TEST(Optimizer, LarsSumsALargeTensor) {
  const std::size_t n = 100003;
  const std::vector<float> weights = random_normal(n, 1), gradients = random_normal(n, 2);
  double w = 0, g = 0;
  for (std::size_t i = 0; i < n; ++i) {
    w += double{weights[i]} * weights[i];
    g += double{gradients[i]} * gradients[i];
  }
  const double ratio = 0.001 * std::sqrt(w / g);
  std::vector<double> expected = to_double(weights);
  for (std::size_t i = 0; i < n; ++i) expected[i] -= 8 * ratio * gradients[i];
  std::vector<float> first;
  for (auto& [name, backend] : tested_backends()) {
    Device device(*backend);
    const auto op = backend->make(OptimizerDescription{.kind = kLars, .segments = {{0, n, true}}, .n_elements = n});
    const Optimizer::Apply args{.parameters = device.upload(weights),
                                .gradients = device.upload(gradients),
                                .scalars = device.upload(std::vector<StepScalars>{{.learning_rate = 8}})};
    op->apply(args, device.op_memory(op->memory_requirements()), device.stream());
    const std::vector<float> out = device.download(args.parameters, n);
    EXPECT_TRUE(near(out, expected, 1e-6)) << name;  // three roundings of values up to 5
    if (backend->name() == "cuda") continue;         // cuda fuses products and sums, the others do not
    if (first.empty()) first = out;
    EXPECT_EQ(out, first) << name;
  }
}

/// More tensors than fit into the arguments of one kernel, some with several blocks and some not aligned to vectors, in
/// arenas that are not aligned either.
TEST(Optimizer, ManyTensorsAtAnyAlignment) {
  std::vector<ParameterSegment> segments;
  std::size_t n = 3;
  for (std::size_t i = 0; i < 700; ++i) {
    segments.push_back({n, i % 100 == 7 ? 9001 : i % 5 * 3, i % 2 == 0});
    n += segments.back().n_elements + i % 4;
  }
  const std::vector<float> weights = random_normal(static_cast<std::int64_t>(n + 1), 1);
  const std::vector<float> gradients = random_normal(static_cast<std::int64_t>(n + 1), 2);
  reference::ReferenceBackend reference;
  for (const auto kind : {kSgd, kAdamw, kLars})
    for (const std::size_t offset : {0u, 1u}) {
      const auto apply = [&](Backend& backend) {
        Device device(backend);
        const auto op = backend.make(OptimizerDescription{.kind = kind,
                                                          .momentum = 0.9f,
                                                          .weight_decay = 0.1f,
                                                          .trust_coefficient = 0.5f,
                                                          .segments = segments,
                                                          .n_elements = n,
                                                          .weight_dtype = DType::bf16});
        const StepScalars scalars{.learning_rate = 0.5f, .adam_correction1 = 10, .adam_correction2 = 1000};
        float* parameters = device.upload(weights);
        std::uint16_t* rounded = device.upload(bf16_bits(weights));
        op->apply({.parameters = parameters + offset,
                   .weights = rounded + offset,
                   .gradients = device.upload(gradients) + offset,
                   .state = device.upload(std::vector<float>(2 * n + 1)) + offset,
                   .scalars = device.upload(std::vector<StepScalars>{scalars})},
                  device.op_memory(op->memory_requirements()), device.stream());
        const std::vector<float> updated = device.download(parameters, n + 1);
        EXPECT_EQ(device.download(rounded, n + 1), bf16_bits(updated)) << backend.name() << ", " << offset;
        return updated;
      };
      const std::vector<float> expected = apply(reference);
      for (auto& [name, backend] : tested_backends())  // a step of FollowsPyTorch
        EXPECT_TRUE(near(apply(*backend), expected, 1e-6)) << name << ", " << static_cast<int>(kind) << ", " << offset;
    }
}

/// A segment with its own factor and weight decay is updated as by an optimizer with that learning rate and that decay:
/// the bits are the same, since the factors are powers of two.
TEST(Optimizer, SegmentsHaveTheirOwnLearningRateAndDecay) {
  const std::vector<float> weights = random_normal(kElements, 1), gradients = random_normal(kElements, 2);
  const std::vector<ParameterSegment> segments = {{0, 1, true, 4.0f, 0.0f},
                                                  {16, 37, false, 0.5f, 0.25f},
                                                  {64, 513, true, 0.25f, 0.125f},
                                                  {640, 3, true},
                                                  {656, 500, true, 0.0f}};
  reference::ReferenceBackend reference;
  for (Backend* backend : all_backends(reference))
    for (const auto kind : {kSgd, kAdamw, kLars}) {
      const auto update = [&](const std::vector<ParameterSegment>& part, float learning_rate, float decay) {
        Device device(*backend);
        const auto op = backend->make(OptimizerDescription{.kind = kind,
                                                           .momentum = 0.9f,
                                                           .weight_decay = decay,
                                                           .trust_coefficient = 0.5f,
                                                           .segments = part,
                                                           .n_elements = kElements});
        const StepScalars scalars{.learning_rate = learning_rate, .adam_correction1 = 10, .adam_correction2 = 1000};
        float* const parameters = device.upload(weights);
        op->apply({.parameters = parameters,
                   .gradients = device.upload(gradients),
                   .state = device.upload(std::vector<float>(2 * kElements)),
                   .scalars = device.upload(std::vector<StepScalars>{scalars})},
                  device.op_memory(op->memory_requirements()), device.stream());
        return device.download(parameters, kElements);
      };
      const std::vector<float> together = update(segments, 0.1f, 0.01f);
      for (const ParameterSegment& s : segments) {
        const std::vector<float> alone =
            update({{s.begin, s.n_elements, s.decay}}, 0.1f * s.learning_rate_factor, s.weight_decay.value_or(0.01f));
        for (std::size_t i = s.begin; i < s.begin + s.n_elements; ++i)
          ASSERT_EQ(together[i], alone[i]) << backend->name() << ", " << static_cast<int>(kind) << ", element " << i;
      }
      EXPECT_EQ(together[656], weights[656]) << backend->name() << ": its factor is 0";
    }
}

/// train.offload moves the update from a device to the host.
TEST(Optimizer, SameBitsOnDevicesAndOnTheHost) {
  const auto host = make_backend({.device = "cpu", .threads = 1});
  const std::vector<float> initial = random_normal(kElements, 1);
  for (const Case& c : kCases)
    for (auto& [name, backend] : tested_backends()) {
      if (c.kind == kLars) continue;
      const Outputs expected = run(*host, c, initial, false, kSteps, DType::bf16);
      const Outputs other = run(*backend, c, initial, false, kSteps, DType::bf16);
      EXPECT_EQ(other.parameters, expected.parameters) << name << ", " << c.name;
      EXPECT_EQ(other.state, expected.state) << name << ", " << c.name;
      EXPECT_EQ(other.weights, expected.weights) << name << ", " << c.name;
    }
}

/// The number of threads must not change a bit (1 and 2 threads are the two tested backends).
TEST(Optimizer, SameBitsOnAnyNumberOfThreads) {
  if (!is_tested_device("cpu")) GTEST_SKIP() << "it tests the cpu backend";
  const std::vector<float> initial = random_normal(kElements, 1);
  for (const Case& c : kCases) {
    const Outputs first = run(*tested_backends()[0].backend, c, initial);
    const Outputs second = run(*tested_backends()[1].backend, c, initial);
    EXPECT_EQ(first.parameters, second.parameters) << c.name;
    EXPECT_EQ(first.state, second.state) << c.name;
  }
}

}  // namespace
}  // namespace lockstep::test
