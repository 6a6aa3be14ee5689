// ranks: 1 2 3 4
// timeout: 300
// N ranks compute what one rank computes. With synchronised batch norm, the gradients of one step agree within fp32
// rounding, even if some samples have no label. All replicas hold the same bits after 50 steps.
#include <cstdio>
#include <string>

#include "lockstep/error.h"
#include "test/comm/test_world.h"
#include "test/reference/backend.h"
#include "test/support/device.h"
#include "test/train/small_run.h"
#include "train/replica.h"

namespace lockstep {
namespace {

using comm::test_world;

void check(bool good, int rank, const std::string& what) { EXPECT_TRUE(good) << "rank " << rank << ": " << what; }

std::vector<float> gradients(const Config& config, Backend& backend, Communicator& communicator) {
  test::SmallRun run(config, backend, communicator);
  run.step(0);
  return run.all_gradients();
}

/// The allowed error is twice that of one rank against double precision, since only rounding differs.
void gradients_agree(World& world) {
  Config config = test::small_config(16, 10);  // 10: shards differ on 3 and 4 ranks
  config.batch_norm.synchronize = true;
  const auto cpu = make_backend(test::tested_device());
  const auto communicator = comm::make_communicator(config.comm, world, *cpu);
  const std::vector<float> ours = gradients(config, *cpu, *communicator);
  const auto alone = comm::single_world();
  const auto alone_communicator = comm::make_communicator(config.comm, *alone, *cpu);
  const std::vector<float> one_rank = gradients(config, *cpu, *alone_communicator);
  const auto exact_backend = reference::make_reference_backend();
  const auto exact_communicator = comm::make_communicator(config.comm, *alone, *exact_backend);
  const std::vector<float> exact = gradients(config, *exact_backend, *exact_communicator);
  const double error = test::relative_distance(ours, exact), error_of_one = test::relative_distance(one_rank, exact);
  if (world.rank() == 0) std::printf("%d ranks: error %.2e, one rank %.2e\n", world.size(), error, error_of_one);
  check(error <= 2 * error_of_one, world.rank(), "gradients differ from one rank's by more than rounding");
}

void replicas_stay_equal(World& world) {
  Config config = test::small_config(8, 10);
  config.train.accumulate = 2;
  config.train.clip_norm = 1.0;
  const auto cpu = make_backend(test::tested_device());
  const auto communicator = comm::make_communicator(config.comm, world, *cpu);
  test::SmallRun run(config, *cpu, *communicator);
  const std::uint64_t before = run.replica().hash();
  for (int step = 0; step < 50; ++step) run.step(step);
  const std::uint64_t mine = run.replica().hash();
  check(mine != before, world.rank(), "training changed nothing");
  for (const std::string& theirs : world.all_gather(std::to_string(mine)))
    check(theirs == std::to_string(mine), world.rank(), "replicas differ after 50 steps");
}

/// Synthetic images, every third of which has no label.
class PartlyLabelled final : public data::ImageSet {
 public:
  explicit PartlyLabelled(std::shared_ptr<const data::ImageSet> set) : set_(std::move(set)) {}
  const data::ImageSetInfo& info() const override { return set_->info(); }
  void read_image(std::int64_t sample, std::uint32_t epoch, std::span<std::uint8_t> image,
                  std::int32_t& label) const override {
    set_->read_image(sample, epoch, image, label);
    if (sample % 3 == 1) label = -1;
  }

 private:
  std::shared_ptr<const data::ImageSet> set_;
};

/// One step on 10 samples, 7 of which have labels: how far it moves the weights, and with which gradients.
struct Moved {
  std::vector<float> weights, gradients;
  train::StepResult result;
};
Moved step_on_partly_labelled(Backend& backend, Communicator& communicator) {
  Config config = test::small_config(16, 10);
  config.batch_norm.synchronize = true;
  config.optimizer.learning_rate = 1;
  config.optimizer.momentum = 0;
  config.optimizer.weight_decay = 0;
  test::SmallRun run(config, backend, communicator, std::make_shared<PartlyLabelled>(test::synthetic_set(config)));
  const std::vector<float> before = run.all_weights();
  run.step(0);
  Moved moved{.weights = run.all_weights(), .gradients = run.all_gradients(), .result = run.result()};
  for (std::size_t i = 0; i < before.size(); ++i) moved.weights[i] = before[i] - moved.weights[i];
  return moved;
}

/// The loss is a mean over the samples that have a label, whichever ranks they are on.
void unlabelled_samples_are_left_out(World& world) {
  const auto cpu = make_backend(test::tested_device());
  const auto communicator = comm::make_communicator({}, world, *cpu);
  const Moved ours = step_on_partly_labelled(*cpu, *communicator);
  const auto alone = comm::single_world();
  const auto alone_communicator = comm::make_communicator({}, *alone, *cpu);
  const Moved one_rank = step_on_partly_labelled(*cpu, *alone_communicator);
  const auto exact_backend = reference::make_reference_backend();
  const auto exact_communicator = comm::make_communicator({}, *alone, *exact_backend);
  const Moved exact = step_on_partly_labelled(*exact_backend, *exact_communicator);
  check(ours.result.sums.count == 7 && ours.result.is_applied == 1, world.rank(), "the labels were not counted");
  check(std::abs(ours.result.sums.loss - exact.result.sums.loss) < 1e-5 * exact.result.sums.loss, world.rank(),
        "the loss counts samples without a label");
  // The gradients have the weight 1 / 10. Weights near 1 round small differences.
  std::vector<float> mean_gradient = ours.gradients;
  for (float& g : mean_gradient) g *= 10.0f / 7;
  const double by_mean = test::relative_distance(ours.weights, mean_gradient);
  const double error = test::relative_distance(ours.weights, exact.weights);
  const double error_of_one = test::relative_distance(one_rank.weights, exact.weights);
  if (world.rank() == 0)
    std::printf("%d ranks, 7 of 10 labelled: %.1e from the mean gradient; error %.1e, one rank %.1e\n", world.size(),
                by_mean, error, error_of_one);
  check(by_mean < 1e-5, world.rank(), "the step is not the mean over the labelled samples");
  check(error <= 2 * error_of_one, world.rank(), "unlabelled samples make ranks differ by more than rounding");
}

/// Appends all tensors of a checkpoint to `out`, and on rank 0 those of the model.
void read_state(train::Replica& replica, std::vector<std::vector<float>>& out) {
  const std::vector<checkpoint::TensorSource> sources = replica.sources();
  std::vector<std::vector<float>> stored;
  int n_rounds = 0;
  for (const checkpoint::TensorSource& source : sources) {
    stored.emplace_back(source.n_read());
    n_rounds = std::max(n_rounds, source.rounds.end);
  }
  for (int round = 0; round < n_rounds; ++round) {
    replica.begin_round(round);
    for (std::size_t i = 0; i < sources.size(); ++i)
      if (sources[i].rounds.contains(round)) sources[i].read(stored[i]);
  }
  for (std::size_t i = 0; i < sources.size(); ++i) {
    checkpoint::TensorSource copy = sources[i];
    copy.read = [&](std::span<float> values) { std::ranges::copy(stored[i], values.begin()); };
    out.push_back(checkpoint::read_canonical(copy));
  }
  const std::vector<checkpoint::NamedTensor> named = replica.named_tensors(0);
  for (const checkpoint::NamedTensor& tensor : named)
    if (test_world->rank() == 0) out.push_back(tensor.values());
}

/// The state after some steps, and after one more: reading it does not change a step.
std::vector<std::vector<float>> state_after_steps(const Config& config, Backend& backend, Communicator& communicator) {
  test::SmallRun run(config, backend, communicator);
  std::vector<std::vector<float>> out;
  for (int step = 0; step < 5; ++step) {
    run.step(step);
    if (step >= 3) read_state(run.replica(), out);
  }
  for (const std::string& theirs : test_world->all_gather(std::to_string(run.replica().hash())))
    check(theirs == std::to_string(run.replica().hash()), communicator.rank(), "replicas differ");
  return out;
}

/// train.shard divides the work differently, but the results are the same.
void sharding_changes_no_bits(World& world) {
  for (const Precision precision : {Precision::fp32, Precision::bf16})
    for (const char* kind : {"sgd", "adamw"}) {
      Config config = test::small_config(8, 12);
      config.precision = precision;
      config.optimizer.kind = kind;
      config.train.clip_norm = 1;
      const auto backend = make_backend(test::tested_device());
      const auto communicator = comm::make_communicator(config.comm, world, *backend);
      const auto expected = state_after_steps(config, *backend, *communicator);
      config.train.shard = "optimizer";
      check(state_after_steps(config, *backend, *communicator) == expected, world.rank(),
            std::string("train.shard changes the bits of ") + kind + " in " + std::string(name(precision)));

      // The ranks' micro-batches are others then, but the tree that sums them is the same.
      config.train.global_batch = 24;
      config.train.micro_batches = 12;
      std::vector<std::vector<float>> of_tree;
      for (const char* shard : {"none", "gradients", "parameters"}) {
        config.train.shard = shard;
        const train::BatchShape shape = train::batch_shape(config, world.rank(), world.size());
        const auto in_order = comm::make_communicator(config.comm, world, *backend, shape.order_over_ranks());
        const auto state = state_after_steps(config, *backend, *in_order);
        check(of_tree.empty() || state == of_tree, world.rank(),
              std::string("shards change the bits of ") + kind + " in " + std::string(name(precision)));
        of_tree = state;
      }
    }
}

/// Flags are summed with the loss: all ranks learn how many of them set a flag in this step, and the loss is unchanged.
void flags_are_counted(World& world) {
  Config config = test::small_config(8, 8);
  config.optimizer.learning_rate = 0;  // each step begins with the same weights
  const auto cpu = make_backend(test::tested_device());
  const auto communicator = comm::make_communicator(config.comm, world, *cpu);
  test::SmallRun run(config, *cpu, *communicator);
  const double ranks = world.size();
  const double is_last = world.rank() + 1 == world.size() ? 1 : 0;
  const double loss =
      run.step(0, {.stop_requests = is_last, .save_due = 1 - is_last, .saver_done = 1, .report_due = is_last});
  const train::StepFlags first = run.result().flags;
  check(first.stop_requests == 1 && first.save_due == ranks - 1 && first.saver_done == ranks && first.report_due == 1,
        world.rank(), "the flags of a step are not the counts of ranks");
  check(run.step(0, {.save_due = 1}) == loss, world.rank(), "flags change the loss");
  const train::StepFlags second = run.result().flags;
  check(second.stop_requests == 0 && second.save_due == ranks && second.saver_done == 0, world.rank(),
        "flags of the step before are left");
}

void the_rank_that_differs_is_named(World& world) {
  train::require_equal_replicas(world, 42, 7);
  if (world.size() < 3) return;  // with two ranks, either may be wrong
  std::string message;
  try {
    train::require_equal_replicas(world, world.rank() == 1 ? 43 : 42, 7);
  } catch (const Error& error) {
    message = error.what();
  }
  check(message.find("rank 1 on " + world.host()) != std::string::npos, world.rank(), "not named: " + message);
}

/// Flips one bit of one weight of one rank.
void a_flipped_bit_is_found(World& world) {
  const Config config = test::small_config(8, 8);
  const auto cpu = make_backend(test::tested_device());
  const auto communicator = comm::make_communicator(config.comm, world, *cpu);
  test::SmallRun run(config, *cpu, *communicator);
  run.step(0);
  train::require_equal_replicas(world, run.replica().hash(), 1);
  const int last = world.size() - 1;
  if (world.rank() == last) {
    const checkpoint::TensorTarget target = run.replica().targets()[7];
    std::vector<float> values = run.replica().named_tensors(1)[7].values();
    reinterpret_cast<std::uint32_t&>(values[5]) ^= 1u;
    target.write(values);
  }
  std::string message;
  try {
    train::require_equal_replicas(world, run.replica().hash(), 1);
  } catch (const Error& error) {
    message = error.what();
  }
  check(message.empty() == (last == 0), world.rank(), "a flipped bit was not found");
  const std::string name = fmt::format("rank {} on {}", last, world.host());
  check(last < 2 || message.find(name) != std::string::npos, world.rank(), "not named: " + message);
}

TEST(Ranks, GradientsAgree) { gradients_agree(*test_world); }
TEST(Ranks, UnlabelledSamplesAreLeftOut) { unlabelled_samples_are_left_out(*test_world); }
TEST(Ranks, ShardingChangesNoBits) { sharding_changes_no_bits(*test_world); }
TEST(Ranks, FlagsAreCounted) { flags_are_counted(*test_world); }
TEST(Ranks, ReplicasStayEqual) { replicas_stay_equal(*test_world); }
TEST(Ranks, TheRankThatDiffersIsNamed) { the_rank_that_differs_is_named(*test_world); }
TEST(Ranks, AFlippedBitIsFound) { a_flipped_bit_is_found(*test_world); }

}  // namespace
}  // namespace lockstep
