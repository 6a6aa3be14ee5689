// Drawing tokens: the steps of the reference compared with their definitions, every backend with the reference token
// for token, and the distribution of the draws.
#include "test/reference/sample.h"

#include <gtest/gtest.h>

#include <map>

#include "test/reference/backend.h"
#include "test/support/device.h"
#include "test/support/tensor.h"

namespace lockstep::test {
namespace {

const std::vector<float> kLogits{1.5f, -0.5f, 2.0f, 0.0f, -3.0f, 1.5f, 0.75f, -1.25f};

std::vector<double> softmax_of(const std::vector<float>& logits, double temperature) {
  std::vector<double> out;
  for (const float l : logits) out.push_back(double{l} / temperature);
  return reference::softmax(out);
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
                          const std::vector<bool>& occurred = std::vector<bool>(8)) {
  const auto actual = reference::SampleSteps(kLogits, occurred, options).probabilities;
  ASSERT_EQ(actual.size(), expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i) EXPECT_NEAR(actual[i], expected[i], 1e-7) << i;
}

TEST(Sample, FiltersAsDefined) {
  const auto p = softmax_of(kLogits, 1), cold = softmax_of(kLogits, 0.5);
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
  std::vector<float> penalized = kLogits;
  penalized[2] /= 2;
  penalized[1] *= 2;  // negative
  expect_probabilities({.temperature = 1, .repetition_penalty = 2}, softmax_of(penalized, 1),
                       {false, true, true, false, false, false, false, false});
}

struct Inputs {
  std::vector<std::vector<float>> logits;
  std::vector<SampledSequence> sequences;
  Sample::Settings settings;
  std::vector<std::uint32_t> occurred{};
};

struct Outputs {
  std::vector<SampledSequence> sequences;
  std::vector<std::uint32_t> occurred;
  std::vector<std::int32_t> ids, positions;
};

/// Calls the op `n_calls` times, with the same logits.
Outputs draw(Backend& backend, const Inputs& in, int n_calls = 1) {
  const SampleDescription d{.sequences = std::ssize(in.sequences), .vocabulary = std::ssize(in.logits[0])};
  Device device(backend);
  const auto op = backend.make(d);
  std::vector<float> logits;
  for (const auto& row : in.logits) logits.insert(logits.end(), row.begin(), row.end());
  std::vector<std::uint32_t> occurred = in.occurred;
  occurred.resize(static_cast<std::size_t>(d.sequences * d.occurred_words()));
  const std::vector<std::int32_t> places(in.sequences.size(), 7);
  Sample::Forward args;
  args.logits = device.upload(logits);
  args.settings = device.upload(std::vector{in.settings});
  args.sequences = device.upload(in.sequences);
  args.occurred = device.upload(occurred);
  args.ids = device.upload(places);
  args.positions = device.upload(places);
  for (int i = 0; i < n_calls; ++i) op->forward(args, device.op_memory(op->memory_requirements()), device.stream());
  return {device.download(args.sequences, in.sequences.size()), device.download(args.occurred, occurred.size()),
          device.download(args.ids, places.size()), device.download(args.positions, places.size())};
}

std::int32_t draw_one(Backend& backend, const std::vector<float>& logits, const Sample::Settings& settings) {
  return draw(backend, {{logits}, {{.row = 0}}, settings}).sequences[0].id;
}

TEST(Sample, EveryBackendDrawsTheTokensOfTheReference) {
  reference::ReferenceBackend reference;
  for (const std::int64_t vocabulary : {1, 37, 4500}) {
    std::vector<SampledSequence> sequences;
    std::vector<std::vector<float>> logits;
    for (int i = 0; i < 6; ++i) {
      sequences.push_back({.row = i % 5 == 4 ? -1 : (i * 7) % 3,
                           .prompt = static_cast<std::uint32_t>(i / 2),
                           .reply = static_cast<std::uint32_t>(i % 2),
                           .position = static_cast<std::uint32_t>(i)});
    }
    for (unsigned row = 0; row < 3; ++row) {
      logits.push_back(random_normal(vocabulary, row + 1));
      for (std::size_t i = 0; i < logits[row].size(); ++i) {
        logits[row][i] *= row == 0 ? 1.0f : 4.0f;
        if (i % 3 == 2) logits[row][i] = logits[row][i / 2];  // equal ones
        if (row == 2 && i % 7 == 3) logits[row][i] = -INFINITY;
      }
    }
    for (const SamplingOptions& options :
         std::vector<SamplingOptions>{{},
                                      {.repetition_penalty = 1.3},
                                      {.temperature = 1},
                                      {.temperature = 0.7, .top_k = 5},
                                      {.temperature = 1.3, .top_k = 40, .top_p = 0.8, .repetition_penalty = 1.7},
                                      {.temperature = 1, .top_p = 0.5},
                                      {.temperature = 1, .top_p = 0},
                                      {.temperature = 2, .min_p = 0.1, .repetition_penalty = 0.8},
                                      {.temperature = 1, .top_k = 1},
                                      {.temperature = 1, .min_p = 1}}) {
      const Inputs in{logits, sequences, {options, 11}};
      const Outputs expected = draw(reference, in, 2);
      for (auto& [name, backend] : tested_backends()) {
        const Outputs actual = draw(*backend, in, 2);
        EXPECT_EQ(actual.ids, expected.ids) << name << ", " << vocabulary << ", top_k " << options.top_k << ", top_p "
                                            << options.top_p << ", temperature " << options.temperature;
        EXPECT_EQ(actual.positions, expected.positions) << name;
        EXPECT_EQ(actual.occurred, expected.occurred) << name;
        for (std::size_t i = 0; i < sequences.size(); ++i) {
          EXPECT_EQ(actual.sequences[i].position, expected.sequences[i].position) << name;
          EXPECT_EQ(actual.sequences[i].scratch, 0u) << name;
          EXPECT_NEAR(actual.sequences[i].log_probability, expected.sequences[i].log_probability, 2e-6) << name;
        }
      }
    }
  }
}

TEST(Sample, TakesTheFirstOfEqualOnesAndRefusesWhatIsNotFinite) {
  const float nan = std::numeric_limits<float>::quiet_NaN(), infinity = std::numeric_limits<float>::infinity();
  for (auto& [name, backend] : tested_backends()) {
    EXPECT_EQ(draw_one(*backend, {0, 3, 3, 1}, {}), 1) << name;
    EXPECT_EQ(draw_one(*backend, {-1, -0.0f, 0, -2}, {}), 1) << name;
    // By these temperatures nothing can be divided.
    for (const double temperature : {1e-320, 1e-45, 1e-38, 1e-30, 1e-15})
      EXPECT_EQ(draw_one(*backend, {1e4f, 2e4f, -3e4f}, {{.temperature = temperature}}), 1) << name;
    for (const double temperature : {0.0, 1.0}) {
      const Sample::Settings settings{{.temperature = temperature}};
      EXPECT_EQ(draw_one(*backend, {1, nan, 2}, settings), -1) << name;
      EXPECT_EQ(draw_one(*backend, {1, infinity, 2}, settings), -1) << name;
      EXPECT_EQ(draw_one(*backend, {-infinity, -infinity}, settings), -1) << name;
      EXPECT_EQ(draw_one(*backend, {-infinity, 1, -infinity}, settings), 1) << name;
    }
  }
}

/// The statistic of Pearson's chi-squared test. With 7 degrees of freedom it exceeds 24.3 once in 1000 times; the
/// random numbers are fixed.
TEST(Sample, DrawsWithTheProbabilitiesOfTheSoftmax) {
  constexpr int kDraws = 40000;
  constexpr double kLimit = 24.3;
  const auto backend = make_backend({.device = "cpu", .threads = 1});
  for (const SamplingOptions& options :
       {SamplingOptions{.temperature = 1}, SamplingOptions{.temperature = 1.7},
        SamplingOptions{.temperature = 0.8, .top_k = 5}, SamplingOptions{.temperature = 1, .top_p = 0.9}}) {
    const auto p = reference::SampleSteps(kLogits, {}, options).probabilities;
    // The draws of one reply are independent, and so are the first draws of many prompts and replies.
    for (const int which : {0, 1, 2}) {
      Inputs in{{kLogits}, {}, {options, 7}};
      for (std::uint32_t i = 0; i < kDraws; ++i)
        in.sequences.push_back(
            {.row = 0, .prompt = which == 1 ? i : 3, .reply = which == 2 ? i : 1, .position = which == 0 ? i : 0u});
      std::map<std::int32_t, int> counts;
      for (const SampledSequence& sequence : draw(*backend, in).sequences) ++counts[sequence.id];
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

}  // namespace
}  // namespace lockstep::test
