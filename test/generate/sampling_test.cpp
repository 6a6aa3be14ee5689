// How tokens are chosen: compared with the definitions of the filters, and the distribution of the draws.
#include "generate/sampling.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>
#include <numeric>

#include "lockstep/error.h"

namespace lockstep::generate {
namespace {

const std::vector<float> kLogits{1.5f, -0.5f, 2.0f, 0.0f, -3.0f, 1.5f, 0.75f, -1.25f};

std::vector<double> softmax(const std::vector<float>& logits, double temperature) {
  std::vector<double> out;
  for (const float l : logits) out.push_back(std::exp(double{l} / temperature));
  const double sum = std::accumulate(out.begin(), out.end(), 0.0);
  for (double& p : out) p /= sum;
  return out;
}

/// The probabilities of the tokens that are kept, divided by their sum.
std::vector<double> only(std::vector<double> p, const std::vector<std::size_t>& kept) {
  double sum = 0;
  for (const std::size_t i : kept) sum += p[i];
  std::vector<double> out(p.size());
  for (const std::size_t i : kept) out[i] = p[i] / sum;
  return out;
}

void expect_probabilities(const SamplingOptions& options, const std::vector<double>& expected,
                          const std::vector<std::int32_t>& history = {}) {
  Sampler sampler(options);
  const auto actual = sampler.probabilities(kLogits, history);
  ASSERT_EQ(actual.size(), expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i) EXPECT_NEAR(actual[i], expected[i], 1e-7) << i;
}

TEST(Sampling, FiltersAsDefined) {
  const auto p = softmax(kLogits, 1), cold = softmax(kLogits, 0.5);
  expect_probabilities({.temperature = 1}, p);
  expect_probabilities({.temperature = 0.5}, cold);
  expect_probabilities({.temperature = 1, .top_k = 1}, only(p, {2}));
  expect_probabilities({.temperature = 1, .top_k = 2}, only(p, {0, 2, 5}));  // the last two are equal
  expect_probabilities({.temperature = 1, .top_k = 100}, p);
  // The probabilities in descending order: 2: .398, 0 and 5: .241, 6: .114, ...
  expect_probabilities({.temperature = 1, .top_p = 0.3}, only(p, {2}));
  expect_probabilities({.temperature = 1, .top_p = 0.7}, only(p, {0, 2, 5}));
  expect_probabilities({.temperature = 1, .top_p = 0.95}, only(p, {0, 2, 3, 5, 6}));
  expect_probabilities({.temperature = 1, .top_p = 0}, only(p, {2}));
  expect_probabilities({.temperature = 1, .min_p = 0.2}, only(p, {0, 2, 5, 6}));
  expect_probabilities({.temperature = 1, .min_p = 1}, only(p, {2}));
  // The filters are applied in this order: top-p sees the probabilities that top-k left.
  expect_probabilities({.temperature = 1, .top_k = 4, .top_p = 0.9}, only(p, {0, 2, 5, 6}));
  expect_probabilities({.temperature = 0.5, .top_p = 0.5}, only(cold, {2}));
}

TEST(Sampling, PenalizesRepetition) {
  std::vector<float> logits = kLogits;
  logits[2] /= 2;
  logits[1] *= 2;  // negative
  expect_probabilities({.temperature = 1, .repetition_penalty = 2}, softmax(logits, 1), {2, 1, 2, 2});
  Sampler greedy({.repetition_penalty = 2});
  EXPECT_EQ(greedy.choose(kLogits, {}, {}).id, 2);
  const std::vector<std::int32_t> history{2, 2, 0};
  EXPECT_EQ(greedy.choose(kLogits, history, {}).id, 5);
}

TEST(Sampling, ATemperatureByWhichNothingCanBeDividedIsGreedy) {
  for (const double temperature : {1e-320, 1e-45, 1e-38, 1e-30, 1e-15})
    EXPECT_EQ(Sampler({.temperature = temperature}).choose(std::vector<float>{1e4f, 2e4f, -3e4f}, {}, {}).id, 1);
}

TEST(Sampling, GreedyTakesTheFirstOfEqualOnes) {
  Sampler greedy({});
  const std::vector<float> equal{0, 3, 3, 1};
  const Choice choice = greedy.choose(equal, {}, {});
  EXPECT_EQ(choice.id, 1);
  EXPECT_NEAR(choice.log_probability, 3 - std::log(1 + 2 * std::exp(3.0) + std::exp(1.0)), 1e-6);
}

/// The statistic of Pearson's chi-squared test. With 7 degrees of freedom it exceeds 24.3 once in 1000 times; the
/// random numbers are fixed.
TEST(Sampling, DrawsWithTheProbabilitiesOfTheSoftmax) {
  constexpr int kDraws = 40000;
  constexpr double kLimit = 24.3;
  for (const SamplingOptions& options :
       {SamplingOptions{.temperature = 1}, SamplingOptions{.temperature = 1.7},
        SamplingOptions{.temperature = 0.8, .top_k = 5}, SamplingOptions{.temperature = 1, .top_p = 0.9}}) {
    Sampler sampler(options);
    const auto span = sampler.probabilities(kLogits, {});
    const std::vector<double> p(span.begin(), span.end());
    // The draws of one reply are independent, and so are the first draws of many prompts and replies.
    for (const int which : {0, 1, 2}) {
      std::map<std::int32_t, int> counts;
      for (std::uint32_t i = 0; i < kDraws; ++i)
        ++counts[sampler
                     .choose(kLogits, {},
                             {.seed = 7,
                              .prompt = which == 1 ? i : 3,
                              .reply = which == 2 ? i : 1,
                              .position = which == 0 ? i : 0u})
                     .id];
      double statistic = 0;
      for (std::size_t id = 0; id < p.size(); ++id) {
        const int found = counts[static_cast<std::int32_t>(id)];
        if (p[id] == 0)
          EXPECT_EQ(found, 0) << id;
        else
          statistic += (found - kDraws * p[id]) * (found - kDraws * p[id]) / (kDraws * p[id]);
      }
      EXPECT_LT(statistic, kLimit) << which;
      EXPECT_GT(statistic, 0.01) << which;
    }
  }
}

TEST(Sampling, DependsOnThePlaceAlone) {
  Sampler a({.temperature = 1}), b({.temperature = 1});
  int n_equal = 0;
  for (std::uint32_t i = 0; i < 200; ++i) {
    const RandomPlace place{.seed = 1, .prompt = i % 7, .reply = i % 3, .position = i};
    const auto first = a.choose(kLogits, {}, place).id;
    b.choose(kLogits, {}, {.seed = i});  // earlier draws are irrelevant
    EXPECT_EQ(b.choose(kLogits, {}, place).id, first);
    RandomPlace other = place;
    other.seed = 2;
    n_equal += b.choose(kLogits, {}, other).id == first;
  }
  EXPECT_LT(n_equal, 120);
}

TEST(Sampling, RefusesWhatIsNotFinite) {
  const float nan = std::numeric_limits<float>::quiet_NaN(), infinity = std::numeric_limits<float>::infinity();
  for (const double temperature : {0.0, 1.0}) {
    Sampler sampler({.temperature = temperature});
    EXPECT_THROW(sampler.choose(std::vector<float>{1, nan, 2}, {}, {}), Error);
    EXPECT_THROW(sampler.choose(std::vector<float>{-infinity, -infinity}, {}, {}), Error);
    EXPECT_EQ(sampler.choose(std::vector<float>{-infinity, 1, -infinity}, {}, {}).id, 1);
  }
}

}  // namespace
}  // namespace lockstep::generate
