#include "scaling/cases.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <random>
#include <utility>

#include "lockstep/error.h"

namespace lockstep::scaling {
namespace {

constexpr int kMostRanks = 1'000'000;

/// Not std::shuffle, whose result depends on the standard library.
void shuffle(std::vector<Case>& cases, std::size_t begin, std::mt19937_64& random) {
  for (std::size_t i = cases.size() - 1; i > begin; --i) std::swap(cases[i], cases[begin + random() % (i - begin + 1)]);
}

}  // namespace

std::vector<int> sizes_in(const std::string& text, const std::string& option, const std::string& if_twice) {
  std::vector<int> numbers;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    int number = 0;
    const auto [stop, error] = std::from_chars(text.data() + begin, text.data() + end, number);
    require(error == std::errc{} && stop == text.data() + end && number >= 1 && number <= kMostRanks, ErrorCode::usage,
            "{}: expected numbers from 1 to {} with commas between them, such as 1,2,4, found \"{}\"", option,
            kMostRanks, text);
    numbers.push_back(number);
    begin = end + 1;
  }
  std::ranges::sort(numbers);
  const auto twice = std::ranges::adjacent_find(numbers);
  require(twice == numbers.end(), ErrorCode::usage, "{}: {} is given twice; {}", option,
          twice == numbers.end() ? 0 : *twice, if_twice);
  return numbers;
}

std::vector<Size> sizes_of(const std::vector<int>& numbers, bool are_nodes, int ranks_per_node) {
  std::vector<Size> sizes;
  for (const int number : numbers) {
    if (are_nodes) {
      require(number <= kMostRanks / std::max(1, ranks_per_node), ErrorCode::usage, "{} nodes have too many ranks",
              number);
      sizes.push_back({.ranks = number * std::max(1, ranks_per_node), .nodes = number});
      continue;
    }
    const bool fits = ranks_per_node == 0 || number <= ranks_per_node;
    require(fits || number % ranks_per_node == 0, ErrorCode::usage,
            "{} ranks do not fill nodes of {}: use multiples of --ranks-per-node", number, ranks_per_node);
    sizes.push_back({.ranks = number, .nodes = fits ? 1 : number / ranks_per_node});
  }
  return sizes;
}

std::vector<Case> make_cases(const std::vector<Size>& sizes, int repeats, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<Case> cases;
  for (int repeat = 1; repeat <= repeats; ++repeat) {
    const std::size_t begin = cases.size();
    for (const Size& size : sizes)
      cases.push_back({.name = fmt::format("ranks-{:04}-repeat-{}", size.ranks, repeat),
                       .ranks = size.ranks,
                       .nodes = size.nodes,
                       .repeat = repeat});
    shuffle(cases, begin, random);
  }
  return cases;
}

Scaling scaling_of(const Config& config) { return config.train.global_batch > 0 ? Scaling::strong : Scaling::weak; }

std::int64_t batch_of(const Config& config, Scaling scaling, int fewest_ranks) {
  const auto& train = config.train;
  require(train.batch_per_rank != Config::kAuto && train.accumulate != Config::kAuto, ErrorCode::usage,
          "the batch must be the same in all cases of a study, but {}train.batch_per_rank or train.accumulate is auto: "
          "give numbers, which `lockstep plan` suggests",
          config.places({"train.batch_per_rank", "train.accumulate"}));
  const std::int64_t micro_batches = std::int64_t{fewest_ranks} * train.accumulate;
  if (train.global_batch == 0)
    return scaling == Scaling::weak ? train.batch_per_rank : train.batch_per_rank * micro_batches;
  if (scaling == Scaling::strong) return train.global_batch;
  require(train.micro_batches == 0, ErrorCode::usage,
          "train.micro_batches fixes the global batch, so it cannot be combined with --weak");
  require(train.global_batch % micro_batches == 0, ErrorCode::usage,
          "--weak: the global batch {} cannot be divided among {} ranks with train.accumulate={}: set "
          "train.batch_per_rank instead",
          train.global_batch, fewest_ranks, train.accumulate);
  return train.global_batch / micro_batches;
}

Config configuration_of(const Study& study, const Case& a_case, Config config) {
  require(study.scaling == Scaling::weak || study.batch >= std::int64_t{a_case.ranks} * config.train.accumulate,
          ErrorCode::usage,
          "--strong: a global batch of {} has too few samples for {} ranks with train.accumulate={}: use a greater "
          "train.global_batch, fewer ranks, or --weak",
          study.batch, a_case.ranks, config.train.accumulate);
  config.run.directory = study.directory_of(a_case);
  config.run.name = "run";
  config.train.global_batch = study.scaling == Scaling::strong ? study.batch : 0;
  config.train.batch_per_rank = study.scaling == Scaling::strong ? 0 : study.batch;
  config.train.max_steps = study.steps;
  // The run must not end before max_steps, even if an epoch has only a few steps.
  config.train.epochs = static_cast<int>(std::max<std::int64_t>(config.train.epochs, study.steps));
  config.data.validation = "";
  config.evaluation.patience = 0;
  config.checkpoint = Config::Checkpoint();
  config.checkpoint.every_epochs = 0;
  config.log.every_steps = 1;
  config.log.tensorboard = config.log.progress = false;
  config.log.usage_seconds = 0.5;
  return config;
}

}  // namespace lockstep::scaling
