#include "generate/beam_search.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "lockstep/error.h"

namespace lockstep::generate {
namespace {

constexpr float kVeryBad = -1e9f;  // the score that transformers gives to candidates that must not be chosen

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

/// `history` may contain a token several times.
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

}  // namespace

BeamSearch::BeamSearch(const BeamOptions& options, std::span<const std::int32_t> prompt,
                       std::function<bool(std::span<const std::int32_t>)> stops)
    : options_(options), prompt_(prompt.begin(), prompt.end()), stops_(std::move(stops)) {
  const auto n = static_cast<std::size_t>(options.beams);
  beams_.resize(n);
  // All beams start out identical, so only the continuations of the first one count.
  for (std::size_t i = 1; i < n; ++i) beams_[i].score = kVeryBad;
  replies_.assign(n, {.tokens = {}, .log_probabilities = {}, .score = kVeryBad, .is_finished = false});
}

float BeamSearch::with_length_penalty(float score, std::int64_t length) const {
  return score / static_cast<float>(std::pow(static_cast<double>(length), options_.length_penalty));
}

std::vector<BeamSearch::Candidate> BeamSearch::best_candidates(std::span<const float> logits) {
  const std::size_t vocabulary = logits.size() / beams_.size();
  std::vector<float> penalized;
  log_probabilities_.resize(logits.size());
  scores_.resize(logits.size());
  for (std::size_t beam = 0; beam < beams_.size(); ++beam) {
    const auto row = [&](std::vector<float>& of) { return std::span(of).subspan(beam * vocabulary, vocabulary); };
    log_softmax(logits.subspan(beam * vocabulary, vocabulary), row(log_probabilities_));
    std::ranges::copy(row(log_probabilities_), row(scores_).begin());
    if (options_.repetition_penalty != 1) {
      std::vector<std::int32_t> history = prompt_;
      history.insert(history.end(), beams_[beam].tokens.begin(), beams_[beam].tokens.end());
      penalize_repetition(row(scores_), history, options_.repetition_penalty);
    }
    for (float& score : row(scores_)) score += beams_[beam].score;
  }
  const std::size_t n_kept =
      std::min(scores_.size(), std::max<std::size_t>(2, 1 + options_.end_tokens.size()) * beams_.size());
  std::vector<std::uint32_t> order(scores_.size());
  std::iota(order.begin(), order.end(), 0u);
  const auto better = [&](std::uint32_t a, std::uint32_t b) {
    return scores_[a] != scores_[b] ? scores_[a] > scores_[b] : a < b;
  };
  std::ranges::partial_sort(order, order.begin() + static_cast<std::ptrdiff_t>(n_kept), better);
  std::vector<Candidate> best;
  for (std::size_t i = 0; i < n_kept; ++i) {
    Candidate candidate{.parent = static_cast<std::int32_t>(order[i] / vocabulary),
                        .token = static_cast<std::int32_t>(order[i] % vocabulary),
                        .score = scores_[order[i]],
                        .log_probability = log_probabilities_[order[i]]};
    candidate.ends = length_ + 1 >= options_.max_new_tokens ||
                     std::ranges::find(options_.end_tokens, candidate.token) != options_.end_tokens.end();
    if (!candidate.ends && stops_) {
      std::vector<std::int32_t> tokens = beams_[static_cast<std::size_t>(candidate.parent)].tokens;
      tokens.push_back(candidate.token);
      candidate.ends = stops_(tokens);
    }
    best.push_back(candidate);
  }
  return best;
}

void BeamSearch::take_replies(const std::vector<Candidate>& candidates) {
  std::vector<Hypothesis> all = replies_;
  for (std::size_t i = 0; i < candidates.size(); ++i) {
    const Candidate& candidate = candidates[i];
    if (!candidate.ends || i >= beams_.size() || !may_improve_) continue;
    Hypothesis reply = beams_[static_cast<std::size_t>(candidate.parent)];
    reply.tokens.push_back(candidate.token);
    reply.log_probabilities.push_back(candidate.log_probability);
    reply.score = with_length_penalty(candidate.score, length_ + 1);
    reply.is_finished = true;
    all.push_back(std::move(reply));
  }
  std::ranges::stable_sort(all, std::ranges::greater(), &Hypothesis::score);
  all.resize(beams_.size());
  replies_ = std::move(all);
}

/// Called when the beams of the next step are known.
bool BeamSearch::can_improve() const {
  const float possible = with_length_penalty(beams_.front().score, length_);
  float worst = std::ranges::min(replies_, {}, &Hypothesis::score).score;
  if (std::ranges::none_of(replies_, &Hypothesis::is_finished)) return possible > kVeryBad;
  // transformers compares with the score of each reply slot. A slot without a reply has the score -1e9.
  const bool has_room = std::ranges::any_of(replies_, [](const Hypothesis& r) { return !r.is_finished; });
  if (has_room) worst = kVeryBad;
  return possible > worst;
}

std::vector<BeamSearch::Move> BeamSearch::step(std::span<const float> logits) {
  const std::vector<Candidate> candidates = best_candidates(logits);
  std::vector<Candidate> going_on;
  for (const Candidate& candidate : candidates)
    if (!candidate.ends && going_on.size() < beams_.size()) going_on.push_back(candidate);
  take_replies(candidates);
  ++length_;
  if (going_on.empty()) return {};
  // If there are too few, transformers fills up with beams that have ended, with a very bad score. Copies of the last
  // one serve as well.
  while (going_on.size() < beams_.size()) {
    going_on.push_back(going_on.back());
    going_on.back().score = kVeryBad;
  }
  std::vector<Hypothesis> next;
  std::vector<Move> moves;
  for (const Candidate& candidate : going_on) {
    next.push_back(beams_[static_cast<std::size_t>(candidate.parent)]);
    next.back().tokens.push_back(candidate.token);
    next.back().log_probabilities.push_back(candidate.log_probability);
    next.back().score = candidate.score;
    moves.push_back({candidate.parent, candidate.token});
  }
  beams_ = std::move(next);
  may_improve_ = may_improve_ && can_improve();
  return may_improve_ ? moves : std::vector<Move>();
}

std::vector<Hypothesis> BeamSearch::replies() const {
  std::vector<Hypothesis> found;
  for (const Hypothesis& reply : replies_)
    if (reply.is_finished) found.push_back(reply);
  // Ctrl-C: the best beam so far is better than nothing.
  if (found.empty()) found.push_back(beams_.front());
  return found;
}

}  // namespace lockstep::generate
