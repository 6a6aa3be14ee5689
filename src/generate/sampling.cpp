#include "generate/sampling.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "lockstep/error.h"
#include "lockstep/philox.h"

namespace lockstep::generate {
namespace {

constexpr float kNever = -std::numeric_limits<float>::infinity();

/// The logarithm of the sum of the exponentials.
double log_sum_exp(std::span<const float> logits) {
  double greatest = -std::numeric_limits<double>::infinity();
  bool has_nan = false;
  for (const float l : logits) {
    greatest = std::max(greatest, double{l});
    has_nan = has_nan || std::isnan(l);
  }
  require(!has_nan && std::isfinite(greatest), ErrorCode::not_supported,
          "the outputs of the model are not finite: use another checkpoint, or precision=fp32");
  double sum = 0;
  for (const float l : logits) sum += std::exp(double{l} - greatest);
  return greatest + std::log(sum);
}

}  // namespace

void penalize_repetition(std::span<float> logits, std::span<const std::int32_t> history, double penalty) {
  if (penalty == 1) return;
  std::vector<std::int32_t> once(history.begin(), history.end());
  std::ranges::sort(once);
  const auto repeated = std::ranges::unique(once);
  once.erase(repeated.begin(), repeated.end());
  const auto r = static_cast<float>(penalty);
  for (const std::int32_t id : once) {
    if (id < 0 || static_cast<std::size_t>(id) >= logits.size()) continue;
    float& l = logits[static_cast<std::size_t>(id)];
    l = l < 0 ? l * r : l / r;
  }
}

void log_softmax(std::span<const float> logits, std::span<float> out) {
  const double sum = log_sum_exp(logits);
  for (std::size_t i = 0; i < logits.size(); ++i) out[i] = static_cast<float>(double{logits[i]} - sum);
}

void Sampler::keep_top_k() {
  const auto k = static_cast<std::size_t>(options_.top_k);
  if (k == 0 || k >= logits_.size()) return;
  std::vector<float> sorted = logits_;
  std::ranges::nth_element(sorted, sorted.begin() + static_cast<std::ptrdiff_t>(k) - 1, std::ranges::greater());
  const float least = sorted[k - 1];
  for (float& l : logits_)
    if (l < least) l = kNever;
}

/// As in transformers, the least probable tokens are removed, as long as their cumulative probability is at most 1 - p.
/// At least one token remains.
void Sampler::keep_top_p() {
  if (options_.top_p >= 1) return;
  to_probabilities();
  order_.resize(logits_.size());
  std::iota(order_.begin(), order_.end(), 0);
  const auto at = [&](std::int32_t id) { return probabilities_[static_cast<std::size_t>(id)]; };
  std::ranges::stable_sort(order_, [&](std::int32_t a, std::int32_t b) { return at(a) < at(b); });
  double sum = 0;
  for (std::size_t i = 0; i + 1 < order_.size(); ++i) {
    sum += at(order_[i]);
    if (sum > 1 - options_.top_p) break;
    logits_[static_cast<std::size_t>(order_[i])] = kNever;
  }
}

void Sampler::keep_min_p() {
  if (options_.min_p <= 0) return;
  to_probabilities();
  const double least = options_.min_p * *std::ranges::max_element(probabilities_);
  for (std::size_t i = 0; i < logits_.size(); ++i)
    if (probabilities_[i] < least) logits_[i] = kNever;
}

/// Computes the softmax of logits_. Returns the sum of its elements, which is not exactly 1 because of rounding.
double Sampler::to_probabilities() {
  const double normalizer = log_sum_exp(logits_);
  double sum = 0;
  probabilities_.resize(logits_.size());
  for (std::size_t i = 0; i < logits_.size(); ++i)
    sum += probabilities_[i] = logits_[i] == kNever ? 0 : std::exp(double{logits_[i]} - normalizer);
  return sum;
}

std::span<const double> Sampler::probabilities(std::span<const float> logits, std::span<const std::int32_t> history) {
  logits_.assign(logits.begin(), logits.end());
  penalize_repetition(logits_, history, options_.repetition_penalty);
  const auto t = static_cast<float>(options_.temperature);
  for (float& l : logits_) l /= t;
  keep_top_k();
  keep_top_p();
  keep_min_p();
  to_probabilities();
  return probabilities_;
}

Choice Sampler::choose(std::span<const float> logits, std::span<const std::int32_t> history, const RandomPlace& place) {
  const double normalizer = log_sum_exp(logits);
  std::size_t chosen = 0;
  if (options_.is_greedy()) {
    logits_.assign(logits.begin(), logits.end());
    penalize_repetition(logits_, history, options_.repetition_penalty);
    chosen = static_cast<std::size_t>(std::ranges::max_element(logits_) - logits_.begin());
  } else {
    probabilities(logits, history);
    const Philox random(place.seed, RandomPurpose::generate, place.prompt, place.reply);
    const double total = std::accumulate(probabilities_.begin(), probabilities_.end(), 0.0);
    const double drawn = Philox::uniform(random.block(place.position), 0) * total;
    double sum = 0;
    for (std::size_t i = 0; i < probabilities_.size(); ++i) {
      if (probabilities_[i] == 0) continue;
      chosen = i;
      sum += probabilities_[i];
      if (sum > drawn) break;
    }
  }
  return {.id = static_cast<std::int32_t>(chosen),
          .log_probability = static_cast<float>(double{logits[chosen]} - normalizer)};
}

}  // namespace lockstep::generate
