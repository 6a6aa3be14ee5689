// Drawing tokens, straight from the steps of lockstep/ops/sample.h, with floating-point probabilities.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <numeric>
#include <vector>

#include "lockstep/ops/sample.h"
#include "test/reference/ops.h"

namespace lockstep::reference {

inline constexpr double kNever = -std::numeric_limits<double>::infinity();

/// The softmax. What is removed has the logit kNever.
inline std::vector<double> softmax(const std::vector<double>& logits) {
  const double greatest = *std::ranges::max_element(logits);
  std::vector<double> p;
  for (const double l : logits) p.push_back(std::exp(l - greatest));
  const double sum = std::accumulate(p.begin(), p.end(), 0.0);
  for (double& x : p) x /= sum;
  return p;
}

/// The logits after step 1, and the probabilities after step 5 (not if greedy).
struct SampleSteps {
  std::vector<double> logits, probabilities{};

  SampleSteps(std::vector<float> given, const std::vector<bool>& occurred, const SamplingOptions& o) {
    const auto r = static_cast<float>(o.repetition_penalty);
    for (std::size_t i = 0; i < given.size(); ++i) {
      if (r != 1 && occurred[i]) given[i] = given[i] < 0 ? given[i] * r : given[i] / r;
      logits.push_back(double{given[i]});
    }
    if (o.is_greedy()) return;
    std::vector<double> l;
    for (const float x : given) l.push_back(double{x / static_cast<float>(o.temperature)});
    if (o.top_k > 0 && o.top_k < std::ssize(l)) {
      std::vector<double> sorted = l;
      std::ranges::sort(sorted, std::ranges::greater());
      for (double& x : l)
        if (x < sorted[static_cast<std::size_t>(o.top_k) - 1]) x = kNever;
    }
    if (o.top_p < 1) {
      const std::vector<double> p = softmax(l);
      std::vector<std::size_t> order(l.size());
      std::iota(order.begin(), order.end(), 0u);
      std::ranges::stable_sort(order, [&](std::size_t a, std::size_t b) { return p[a] < p[b]; });
      double sum = 0;
      for (std::size_t i = 0; i + 1 < order.size(); ++i) {
        sum += p[order[i]];
        if (sum > 1 - o.top_p) break;
        l[order[i]] = kNever;
      }
    }
    if (o.min_p > 0) {
      const std::vector<double> p = softmax(l);
      const double least = o.min_p * *std::ranges::max_element(p);
      for (std::size_t i = 0; i < l.size(); ++i)
        if (p[i] < least) l[i] = kNever;
    }
    probabilities = softmax(l);
  }
};

class ReferenceSample final : public Sample {
 public:
  explicit ReferenceSample(const SampleDescription& d) : d_(d) {}
  std::string describe() const override { return "reference"; }
  void run_forward(const Forward& args, const OpMemory&, Stream&) override {
    for (std::int64_t n = 0; n < d_.sequences; ++n) {
      SampledSequence& s = args.sequences[n];
      if (s.row < 0) continue;
      const float* const row = args.logits + s.row * d_.vocabulary;
      std::uint32_t* const bits = args.occurred + n * d_.occurred_words();
      const SamplingOptions& o = args.settings->options;
      std::vector<bool> occurred(static_cast<std::size_t>(d_.vocabulary));
      for (std::size_t i = 0; o.repetition_penalty != 1 && i < occurred.size(); ++i)
        occurred[i] = (bits[i / 32] >> (i % 32) & 1) != 0;
      const std::vector<double> all(row, row + d_.vocabulary);
      s.id = -1;
      if (std::ranges::any_of(all, [](double l) { return std::isnan(l); }) ||
          !std::isfinite(*std::ranges::max_element(all)))
        continue;
      const SampleSteps steps({row, row + d_.vocabulary}, occurred, o);
      auto id = std::ranges::max_element(steps.logits) - steps.logits.begin();
      if (!o.is_greedy()) {
        const std::vector<double>& p = steps.probabilities;
        const Philox random(args.settings->seed, RandomPurpose::generate, s.prompt, s.reply);
        const double drawn = Philox::uniform(random.block(s.position), 0) * std::accumulate(p.begin(), p.end(), 0.0);
        double sum = 0;
        for (std::size_t i = 0; i < p.size() && sum <= drawn; ++i) {
          if (p[i] == 0) continue;
          id = static_cast<std::ptrdiff_t>(i);
          sum += p[i];
        }
      }
      s.id = static_cast<std::int32_t>(id);
      s.log_probability = static_cast<float>(std::log(softmax(all)[static_cast<std::size_t>(id)]));
      ++s.position;
      if (o.repetition_penalty != 1) bits[id / 32] |= 1u << (id % 32);
      if (args.ids) args.ids[n] = s.id;
      if (args.positions) ++args.positions[n];
    }
  }

 private:
  SampleDescription d_;
};

inline std::unique_ptr<Sample> make_sample(const SampleDescription& d, const Context&) {
  return std::make_unique<ReferenceSample>(d);
}

}  // namespace lockstep::reference
