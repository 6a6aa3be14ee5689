#include "train/session.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/matmul_rate.h"
#include "base/outcome.h"
#include "base/process.h"
#include "base/signals.h"
#include "checkpoint/huggingface.h"
#include "comm/world.h"
#include "graph/graph.h"
#include "inference/adapters.h"
#include "lockstep/error.h"
#include "lockstep/log.h"
#include "lockstep/memory_limit.h"
#include "models/llama_config.h"
#include "run/metrics.h"
#include "train/algorithm_store.h"
#include "train/batch_fit.h"
#include "train/precision.h"
#include "train/resume_changes.h"
#include "train/schedule.h"
#include "train/weight_gradient_stream.h"

namespace lockstep::train {
namespace {

constexpr int kOtherThreads = 2;  // besides the readers: the main thread, and the writer of checkpoints

BackendOptions device_of(const Config& config, const World& world) {
  return {.device = config.device,
          .threads = config.cpu.threads,
          .local_rank = world.local_rank(),
          .local_size = world.local_size()};
}

/// Far more threads than processors would constantly preempt each other. A few more threads are useful: they reproduce
/// the bits of a machine with that number of processors.
void check_threads(const Config& config) {
  constexpr int kThreadsPerProcessor = 16;
  const int processors = n_processors(), most = kThreadsPerProcessor * processors;
  require(config.cpu.threads <= most, ErrorCode::config_invalid,
          "{}cpu.threads: expected auto or 1 to {} on this node, which has {} processor{}, found {}",
          config.places({"cpu.threads"}), most, processors, processors == 1 ? "" : "s", config.cpu.threads);
}

}  // namespace

Session::Session(Config configured, World& the_world, const SessionOptions& options)
    : config(std::move(configured)), world(the_world), run(config), notes(config.notes), options_(options) {
  progress.patience = Patience(config.evaluation.patience);
  find_checkpoints();
  on_all_ranks([this] {
    check_threads(config);
    make_task();
  });
  on_all_ranks([this] {
    task->open_train_set();
    if (reader_) check_data();
    task->open_validation_set();
    if (leader()) read_model_files();
  });
  require_same_data_on_all_ranks();
  on_all_ranks([this] { open_backend(); });
  if (config.precision_is_automatic) precision_reason_ = resolve_precision(config, *backend, world);
  notes.push_back(fmt::format("precision: {}{}", name(config.precision), precision_reason_));
  on_all_ranks([this] { check_precision(); });
  batch_ = divide_batch();
  config.train.global_batch = batch_.global_batch;
  const std::int64_t n = task->train_set()->info().n_samples;
  require(batch_.global_batch <= n, ErrorCode::data_range,
          "{}a global batch of {} samples is more than the {} of {}: lower train.global_batch",
          config.places({"train.global_batch", "train.batch_per_rank", "train.accumulate"}), batch_.global_batch, n,
          task->train_set()->info().path);
  steps_per_epoch = data::Loader::steps_per_epoch(n, batch_.global_batch, config.data.drop_last);
  check_schedule(config, steps_per_epoch);
  last_step = steps_per_epoch * config.train.epochs;
  if (config.train.max_steps > 0) last_step = std::min(last_step, config.train.max_steps);

  plan_steps();
  require_memory();
  on_all_ranks([this] {
    if (config.model.lora.is_on()) read_base();
    if (!reader_) read_initial_weights();
  });
}

void Session::on_all_ranks(const std::function<void()>& part) {
  stop_if_requested(world);
  all_agree(world, part);
  stop_if_requested(world);
}

void Session::make_task() {
  if (open_next_checkpoint()) {
    const checkpoint::StateJson& state = reader_->state();
    task = tasks::make_resumed_task(config, state.value("model", nlohmann::json::object()), notes);
    task->complete(config);
    resume_from(state, options_);
  } else {
    task = tasks::make_task(config);
    task->complete(config);
  }
  run.set_model_name(task->model_name().file_name);
}

void Session::read_model_files() {
  model_files = task->model_files();
  if (model_files.empty()) return;
  models::LlamaConfig model =
      models::parse_llama_config(model_files.at(checkpoint::kHuggingFaceConfig), checkpoint::kHuggingFaceConfig);
  model_files.merge(run::tokenizer_files(config, model));
  if (leader() && !config.model.lora.is_on())  // warns now rather than at the end
    (void)inference::carried_tensors(
        model, {}, {inference::base_of(config.model), config.model.initialize_from, run.file("model")});
  data_sets = run::describe_data(config);
}

/// A node may have an older file of the same name.
void Session::require_same_data_on_all_ranks() {
  const auto of = [](const std::shared_ptr<const data::Dataset>& set) {
    return set ? fmt::format("{} samples, hash {}", set->info().n_samples, set->info().content_hash) : "no samples";
  };
  const std::pair<const char*, std::shared_ptr<const data::Dataset>> sets[] = {
      {"data.train", task->train_set()}, {"data.validation", task->validation_set()}};
  for (const auto& [key, set] : sets) {
    const std::string mine = of(set), first = world.all_gather(mine).front();
    on_all_ranks([&] {
      require(mine == first, ErrorCode::data_source,
              "{} is another data set than that of rank 0 by the same name ({}, and on rank 0 {}): put the file on a "
              "file system that all nodes share, or copy it to every node",
              key, mine, first);
    });
  }
}

void Session::start() {
  choose_algorithms();
  check_ranks_agree();
  stop_if_requested(world);
  matmul_rate = matmul_rate_of_ranks(*backend, config.precision, world);
  communicator = comm::make_communicator(config.comm, world, *backend, batch_.order_over_ranks(), run.path());
  replica = std::make_unique<Replica>(*plan, *backend, *communicator);
  if (config.model.lora.is_on()) load_base();
  if (reader_)
    restore();
  else
    initialize_weights();
}

void Session::open_backend() {
  if (!config.reproducible) algorithms_ = std::make_shared<Algorithms>();
  BackendOptions options = device_of(config, world);
  options.algorithms = algorithms_;
  options.records_steps = config.cuda.graph && !config.trace;
  backend = make_backend(options);
  stay_near(backend->device().pci_bus, config.data.readers + kOtherThreads);
  const bool is_device = backend->memory_space() == MemorySpace::device;  // a CPU has few algorithms
  if (algorithms_ && is_device) algorithms_->limit_timing(config.cuda.tuning_seconds);
}

void Session::check_precision() const {
  if (const std::string warning = backend->check_precision(config.precision); !warning.empty() && leader())
    log::warning("precision: {}", warning);
}

BatchShape Session::divide_batch() {
  if (has_automatic_batch(config)) {
    const std::int64_t n = task->train_set()->info().n_samples, limit = n / world.size();
    // Fixed algorithms, because a plan that only determines sizes needs no timing.
    const auto planner = make_backend(device_of(config, world));
    const comm::Topology topology = comm::topology_of(config.comm, world, {}, planner->memory_space());
    std::int64_t fits = limit;
    for (const std::string& other : all_agree(world, [&] {
           return std::to_string(
               batch_that_fits(config, *task, world.size(), *planner, topology, backend->device().memory_bytes, limit));
         }))
      fits = std::min(fits, std::stol(other));
    resolve_batch(config, world.size(), fits, n);
    notes.push_back(fits == limit
                        ? fmt::format("a rank processes up to {} samples at once, since the train set has no more for "
                                      "each rank",
                                      fits)
                        : fmt::format("a rank can process {} samples at once in {:.0f} % of {:.1f} GiB", fits,
                                      100 * kUsableMemory,
                                      static_cast<double>(backend->device().memory_bytes) / (1 << 30)));
  }
  BatchShape shape = batch_shape(config, world.rank(), world.size());
  if ((config.data.mixup > 0 || config.data.cutmix > 0) && shape.smallest_micro_batch() == 1)
    notes.emplace_back(
        "data.mixup and data.cutmix have no effect on micro-batches of one image, which this run has: use fewer ranks "
        "or a larger global batch");
  return shape;
}

void Session::make_plan() {
  const auto with = [this](const std::string& weight_gradient_stream) {
    Config chosen = config;
    chosen.cuda.weight_gradient_stream = weight_gradient_stream;
    return chosen;
  };
  const auto planned = [this](const Config& chosen) {
    return std::make_unique<StepPlan>(
        chosen, *task, batch_, *backend,
        comm::topology_of(config.comm, world, batch_.order_over_ranks(), backend->memory_space()));
  };
  plan = planned(config);
  if (config.cuda.weight_gradient_stream != "auto" || !plan->uses_second_stream()) return;
  // A trace shows the weight gradients of each layer only if they run on the same stream as the rest.
  const std::string value =
      config.trace ? "off" : choose_weight_gradient_stream(*plan, algorithms_.get(), [&](const std::string& candidate) {
        return seconds_of_step(with(candidate), *task, batch_.largest_micro_batch(), *backend);
      });
  if (value == "off") plan = planned(with(value));  // "auto" was planned like "on"
}

/// Collective. All ranks use the algorithms that rank 0 has chosen.
void Session::share_algorithms(const Algorithms& known) {
  std::string text = nlohmann::json(known.choices()).dump();
  world.broadcast_text(text);
  algorithms_->remember(nlohmann::json::parse(text).get<Algorithms::Choices>(), known.under_load(), known.untimed());
}

void Session::plan_steps() {
  using Sources = AlgorithmStore::Sources;
  if (algorithms_) {
    const AlgorithmStore store(run, backend->device(), batch_.largest_micro_batch());
    share_algorithms(leader() ? store.load(options_.fresh ? Sources::cache : Sources::run_and_cache) : Algorithms());
  }
  make_plan();
}

void Session::require_memory() {
  all_agree(world, [this] {
    const std::size_t needed = memory_of_device(plan->memory(), backend->memory_space());
    const std::size_t there = backend->device().memory_bytes;
    const auto gib = [](std::size_t size_bytes) { return static_cast<double>(size_bytes) / (1 << 30); };
    const std::string limit = backend->memory_space() == MemorySpace::host ? memory_limit_in_message() : "";
    const std::size_t of_training = memory_of_device(plan->memory(MemoryOf::training), backend->memory_space());
    require(
        needed <= there || of_training > there, ErrorCode::out_of_memory,
        "{}an evaluation needs {:.1f} GiB with {} samples per rank at once, but {:.1f} GiB are free for a rank: lower "
        "evaluation.batch_per_rank; a step of the training needs {:.1f} GiB{}",
        config.places({"evaluation.batch_per_rank"}), gib(needed), plan->evaluation_batch(), gib(there),
        gib(of_training), limit);
    require(needed <= there, ErrorCode::out_of_memory,
            "a step needs {:.1f} GiB with {} samples per rank at once, but {:.1f} GiB are free for a rank{}",
            gib(of_training), batch_.largest_micro_batch(), gib(there), limit);
    if (backend->memory_space() == MemorySpace::device) {
      BackendOptions host = device_of(config, world);
      host.device = "cpu";
      require_host_memory(plan->memory(), make_backend(host)->device().memory_bytes);
    }
    const bool reads_weights = config.model.from != Config::Model{}.from || !config.model.initialize_from.empty();
    if (!reads_weights || backend->memory_space() != MemorySpace::host) return;
    std::size_t largest = 0;  // of the matrices that are read as a whole (inference::load_parameters())
    for (const graph::Parameter& parameter : plan->parameters().parameters())
      if (parameter.layout || parameter.is_in_nf4) largest = std::max(largest, parameter.n_elements * sizeof(float));
    const MemoryReport& kept = plan->memory();
    const std::size_t reading = kept.parameters + kept.compute_weights + kept.nf4_weights + 2 * largest;
    require(reading <= there, ErrorCode::out_of_memory,
            "reading the weights needs {:.1f} GiB, {:.1f} of them for two copies of the largest matrix, but {:.1f} GiB "
            "are free for a rank{}",
            gib(reading), gib(2 * largest), gib(there), limit);
  });
}

void Session::choose_algorithms() {
  if (!algorithms_) return;
  const AlgorithmStore store(run, backend->device(), batch_.largest_micro_batch());
  if (AlgorithmStore::is_on() && world.any(!algorithms_->is_complete())) {
    if (leader()) log::info("timing the algorithms of each layer, once for this device and batch");
    autotune(
        world, *algorithms_, [this] { make_plan(); }, [&] { store.save_in_cache(*algorithms_); });
    share_algorithms(*algorithms_);
    if (const std::size_t n = algorithms_->under_load().size(); n > 0)
      log::info(
          "other programs used the processors while {} of {} algorithms were chosen; the next run chooses these again",
          n, algorithms_->choices().size());
    if (!leader()) make_plan();
  }
  if (leader()) store.save_in_run(*algorithms_);
}

void Session::check_ranks_agree() const {
  const std::vector<std::string> all = world.all_gather(plan->parameters().description());
  for (std::size_t r = 1; r < all.size(); ++r)
    require(all[r] == all[0], ErrorCode::not_supported,
            "rank {} stores its weights in another layout than rank 0, since the processors or libraries of the nodes "
            "differ: use nodes of one type (sbatch --constraint), or set LOCKSTEP_MAX_ISA=avx2 on all of them",
            r);
}

data::LoaderOptions Session::loader_options() const {
  const BatchShape& batch = plan->batch();
  return {.global_batch = config.train.global_batch,
          .capacity = batch.largest_micro_batch(),
          .n_micro_batches = batch.n_micro_batches,
          .first_shard = batch.shard_of(batch.rank, 0),
          .shard_stride = batch.shard_stride(),
          .total_shards = batch.n_shards(),
          .seed = config.run.seed,
          .shuffle = config.data.shuffle,
          .balance = config.data.balance,
          .drop_last = config.data.drop_last,
          .readers = config.data.readers,
          .prefetch = config.data.prefetch,
          .first_step = progress.step,
          .last_step = last_step,
          .backend = backend.get()};
}

std::int64_t Session::global_batch_of(std::int64_t step) const {
  const std::int64_t begin = step % steps_per_epoch * config.train.global_batch;
  return std::min(config.train.global_batch, task->train_set()->info().n_samples - begin);
}

BatchShape Session::shape_of(std::int64_t step) const {
  BatchShape shape = plan->batch();
  shape.global_batch = global_batch_of(step);
  return shape;
}

double Session::flops_of(std::int64_t step) const {
  const std::int64_t size = plan->batch().micro_batch_size(0);
  return graph::flops_of(first_graph()) / static_cast<double>(size) * static_cast<double>(global_batch_of(step));
}

std::optional<double> Session::utilization_of(double flops_rate) const {
  if (!graph::flops_are_exact(first_graph())) return std::nullopt;
  return run::rate_of(flops_rate, matmul_rate);
}

const graph::Graph& Session::first_graph() const {
  const BatchShape& batch = plan->batch();
  return *plan->training(batch.micro_batch_size(0), batch.global_micro_batch_size(0)).graph;
}

bool is_multiple(std::int64_t count, std::int64_t every) { return every > 0 && count % every == 0; }

bool Session::is_due(std::int64_t steps_done, std::int64_t every_steps, std::int64_t every_epochs) const {
  return steps_done == last_step || is_multiple(steps_done, every_steps) ||
         is_multiple(steps_done, every_epochs * steps_per_epoch);
}

std::int64_t Session::samples_after(std::int64_t steps) const {
  if (config.data.drop_last) return steps * config.train.global_batch;
  return steps / steps_per_epoch * task->train_set()->info().n_samples +
         steps % steps_per_epoch * config.train.global_batch;
}

}  // namespace lockstep::train
