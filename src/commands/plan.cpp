// lockstep plan: predicts what a step will allocate and communicate, without allocating its memory: memory per rank by
// kind, buckets, bytes per all-reduce, and the batch that fits.
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include "base/numbers.h"
#include "comm/buckets.h"
#include "comm/world.h"
#include "commands/commands.h"
#include "commands/plan_speed.h"
#include "commands/report.h"
#include "config/parser.h"
#include "data/loader.h"
#include "tasks/task.h"
#include "train/algorithm_store.h"
#include "train/banner.h"
#include "train/batch_fit.h"
#include "train/micro_batch.h"
#include "train/precision.h"
#include "train/schedule.h"

namespace lockstep::commands {

namespace {

using Json = nlohmann::ordered_json;

constexpr int kMaxRanks = 1 << 20;
constexpr std::int64_t kMaxSamples = 1 << 20;  // per rank at once

struct Ranks {
  int n = 1, nodes = 1;
  int on_first_node() const { return (n + nodes - 1) / nodes; }
};

struct Planned {
  Config config;                      // `auto` is replaced by numbers
  std::unique_ptr<tasks::Task> task;  // with an open train set
  std::unique_ptr<Backend> backend;
  std::unique_ptr<train::StepPlan> plan;
  comm::Traffic traffic;                             // of a step
  std::optional<RecomputationReport> recomputation;  // no value: nothing is recomputed
  std::optional<OffloadReport> offload;              // no value: nothing is offloaded
  std::optional<DataRates> rates;                    // no value: no key of `hardware` is set
  std::optional<PlannedCost> cost;                   // no value: no cost model was given
  std::vector<PlannedLaunch> launches, decoding;     // empty without --device
  std::int64_t fits = 0;                             // samples that fit per rank, or per micro-batch, at once
  std::string precision_reason, precision_warning;   // of `precision: auto`, and of the device; empty: none

  bool step_fits() const { return plan->batch().largest_micro_batch() <= fits; }
  bool fits_in(train::MemoryOf of, double part) const {
    const std::size_t needed = train::memory_of_device(plan->memory(of), backend->memory_space());
    return static_cast<double>(needed) <= part * static_cast<double>(backend->device().memory_bytes);
  }
};

/// `device`: a GPU that need not exist on this machine; empty: the device of the configuration.
std::unique_ptr<Backend> backend_of(const Config& config, const Ranks& ranks, const std::string& device,
                                    std::shared_ptr<Algorithms> algorithms) {
  if (!device.empty()) {
    require(config.device != "cpu", ErrorCode::config_conflict,
            "--device {} plans for a GPU, but the configuration has device=cpu: remove one of them", device);
    return make_planning_backend(device);
  }
  return make_backend({.device = config.device,
                       .threads = config.cpu.threads,
                       .local_rank = 0,
                       .local_size = ranks.on_first_node(),
                       .algorithms = std::move(algorithms)});
}

/// The evaluation is planned for the batches of the validation set. If that set is missing or does not match, its
/// batches are assumed to be like those of the train set: a plan needs it for nothing else, and a run reports the
/// error.
void open_validation_set_if_here(tasks::Task& task) {
  try {
    task.open_validation_set();
  } catch (const Error&) {  // NOLINT(bugprone-empty-catch)
  }
}

/// What model.recompute saves and costs. `is_here` is false for a GPU of --device, which cannot be timed.
std::optional<RecomputationReport> recomputation_of(const Planned& planned, comm::Topology topology, bool is_here) {
  if (planned.config.model.recompute == "none") return {};
  Config config = planned.config;
  config.model.recompute = "none";
  const auto task = tasks::make_task(config);
  task->open_train_set();
  open_validation_set_if_here(*task);
  const train::StepPlan kept(config, *task, planned.plan->batch(), *planned.backend, std::move(topology));
  return report_recomputation(*planned.plan, kept, is_here ? planned.backend.get() : nullptr);
}

Planned make_plan(const Config& configured, const Ranks& ranks, const std::string& device) {
  Planned planned;
  planned.config = configured;
  planned.task = tasks::make_task(configured);
  planned.task->open_train_set();
  open_validation_set_if_here(*planned.task);
  Config& config = planned.config;
  const auto topology = [&](const SumOrder& order) {
    return comm::topology_of(config.comm, comm::planned_ranks(ranks.n, ranks.nodes), order,
                             planned.backend->memory_space());
  };
  const auto algorithms = config.reproducible ? nullptr : std::make_shared<Algorithms>();
  planned.backend = backend_of(config, ranks, device, algorithms);
  planned.precision_reason = train::resolve_precision(config, *planned.backend, *comm::single_world());
  planned.precision_warning = planned.backend->check_precision(config.precision);
  // Fixed algorithms, because the algorithms of plans that only determine sizes must not be stored.
  const auto planner = backend_of(config, ranks, device, nullptr);
  planned.fits = train::batch_that_fits(config, *planned.task, ranks.n, *planner, topology({}),
                                        planned.backend->device().memory_bytes, kMaxSamples);
  const std::int64_t n_samples = planned.task->train_set()->info().n_samples;
  train::resolve_batch(config, ranks.n, planned.fits, n_samples);
  const train::BatchShape batch = train::batch_shape(config, 0, ranks.n);
  const std::int64_t steps = data::Loader::steps_per_epoch(n_samples, batch.global_batch, config.data.drop_last);
  // A plan for more ranks than these few samples are enough for has no steps.
  if (steps > 0) train::check_schedule(config, steps);
  if (algorithms)  // a layer without a stored choice runs with a fixed algorithm
    *algorithms =
        train::AlgorithmStore(run::RunDirectory(config), planned.backend->device(), batch.largest_micro_batch()).load();
  planned.plan = std::make_unique<train::StepPlan>(config, *planned.task, batch, *planned.backend,
                                                   topology(batch.order_over_ranks()));
  planned.traffic = comm::traffic_between_nodes(topology(batch.order_over_ranks()), planned.plan->buckets(),
                                                planned.plan->n_sums(), planned.plan->gathered_bytes());
  if (!device.empty()) {
    planned.launches = list_launches(*planned.plan, *planned.backend);
    planned.decoding = grouped(planned.task->list_decoding(config.precision, *planned.backend));
  }
  planned.recomputation = recomputation_of(planned, topology(batch.order_over_ranks()), device.empty());
  if (planned.plan->offloads())
    planned.offload = report_offload(*planned.plan, planned.launches, planned.backend->device());
  planned.rates = data_rates(config, *planned.task->train_set(), ranks.n, ranks.on_first_node(),
                             planned.backend->memory_space() != MemorySpace::host);
  return planned;
}

std::string choices(const Planned& planned) {
  std::string text;
  for (const auto& node : planned.plan->largest().graph->nodes())
    if (const std::string ops = node->describe_ops(); !ops.empty())
      text += fmt::format("  {:<22} {}{}\n", node->name(), ops,
                          floor_text(planned.launches, node->name(), planned.backend->device()));
  return text;
}

/// "Recomputation (block): saves ... MiB of activations (.. %), and adds .. % to the FLOPs of a step ..."
std::string recomputation_text(const Planned& planned) {
  const RecomputationReport& r = *planned.recomputation;
  const int n = planned.plan->batch().n_micro_batches;
  const double milliseconds = 1e3 * r.seconds.value_or(0) * n;
  return fmt::format(
      "Recomputation ({}): saves {:.1f} MiB of activations ({:.0f} % of {:.1f} MiB)\n"
      "  and adds {:.1f} % to the FLOPs of a step, and {:.1f} GB of reading and writing{}\n\n",
      planned.config.model.recompute, r.saved_bytes() / (1 << 20),
      100 * r.saved_bytes() / static_cast<double>(r.kept_activation_bytes),
      static_cast<double>(r.kept_activation_bytes) / (1 << 20), 100 * r.added.flops / r.model_flops,
      1e-9 * r.added.bytes * n,
      r.seconds ? fmt::format(": about {:.{}f} ms on this device", milliseconds, milliseconds < 10 ? 1 : 0) : "");
}

Json json_of_recomputation(const Planned& planned) {
  if (!planned.recomputation) return nullptr;
  const RecomputationReport& r = *planned.recomputation;
  const int n = planned.plan->batch().n_micro_batches;
  return {{"kind", planned.config.model.recompute},
          {"saved_bytes", static_cast<std::int64_t>(r.saved_bytes())},
          {"activation_bytes_without", r.kept_activation_bytes},
          {"added_flops_per_step", r.added.flops * n},
          {"model_flops_per_step", r.model_flops * n},
          {"added_traffic_bytes_per_step", r.added.bytes * n},
          {"added_seconds_per_step", r.seconds ? Json(*r.seconds * n) : Json()}};
}

Json json_of(const Planned& planned, const Ranks& ranks) {
  const train::MemoryReport m = planned.plan->memory();
  const std::size_t of_device = train::memory_of_device(m, planned.backend->memory_space());
  Json buckets = Json::array();
  for (const comm::Bucket& b : planned.plan->buckets())
    buckets.push_back({{"first", b.first_name},
                       {"last", b.last_name},
                       {"size_bytes", b.size_bytes()},
                       {"is_sharded", b.is_sharded()}});
  const Json sent{{"per_node", planned.traffic.per_node}, {"per_rank", planned.traffic.per_rank}};
  return {{"ranks", ranks.n},
          {"nodes", ranks.nodes},
          {"batch_per_rank", planned.plan->batch().largest_micro_batch()},
          {"accumulate", planned.plan->batch().is_tree ? 1 : planned.plan->batch().n_micro_batches},
          {"global_batch", planned.plan->batch().global_batch},
          {"batch_that_fits", planned.fits},
          {"fits", planned.step_fits()},
          {"device", planned.backend->device().name},
          {"precision", name(planned.config.precision)},
          {"parameters", planned.plan->parameters().n_canonical()},
          {"trained_parameters", planned.plan->parameters().n_canonical_trainable()},
          {"memory_bytes",
           {{"parameters", m.parameters},
            {"compute_weights", m.compute_weights},
            {"nf4_weights", m.nf4_weights},
            {"gathered_weights", m.gathered_weights},
            {"gradients", m.gradients},
            {"low_precision_gradients", m.low_precision_gradients},
            {"partial_sums", m.partial_sums},
            {"optimizer", m.optimizer},
            {"averages", m.averages},
            {"activations", m.activations},
            {"activations_without_reuse", m.activations_without_reuse},
            {"workspace", m.workspace},
            {"second_workspace", m.second_workspace},
            {"exchange", m.exchange},
            {"node_buffers", m.node_buffers},
            {"uploads", m.uploads},
            {"loader", m.loader},
            {"offloaded", m.offloaded},
            {"checkpoint", m.checkpoint},
            {"total_on_device", of_device},
            {"total_on_host", m.total() - of_device},
            {"total", m.total()}}},
          {"sent_between_nodes_bytes", sent},
          {"recomputation", json_of_recomputation(planned)},
          {"offload", planned.offload ? json_of(*planned.offload) : Json()},
          {"data_rates", planned.rates ? json_of(*planned.rates) : Json()},
          {"predicted", planned.cost ? json_of(*planned.cost) : Json()},
          {"buckets", buckets}};
}

/// " (to other nodes 341.2 MiB per node and at most 42.7 MiB per rank, gradients in bf16)"
std::string traffic_text(const Planned& planned) {
  const auto mib = [](double size_bytes) { return size_bytes / (1 << 20); };
  const std::string& gradients = planned.config.comm.gradients;
  return fmt::format(" (to other nodes {:.1f} MiB per node and at most {:.1f} MiB per rank{})",
                     mib(planned.traffic.per_node), mib(planned.traffic.per_rank),
                     gradients == "fp32" ? "" : ", gradients in " + gradients);
}

std::string text_of(const Planned& planned, const Ranks& ranks) {
  const Config& config = planned.config;
  const train::StepPlan& plan = *planned.plan;
  const std::vector<std::string> lines = train::learning_lines(plan);
  const bool shards = !plan.shard().is_whole();
  std::size_t summed_bytes = 0;
  for (const comm::Bucket& b : plan.buckets()) summed_bytes += b.size_bytes();
  std::string text = fmt::format(
      "{}, {}, {}{}; batch {}\n{}\nMemory per rank\n{}\n{}{}, {}{:.1f} MiB per step{} in {} buckets\n",
      planned.task->model_name().title, train::parameters_text(plan.parameters()), name(config.precision),
      planned.precision_reason, train::batch_text(plan.batch()),
      fmt::format("{}{}", fmt::join(lines, "\n"), lines.empty() ? "" : "\n"),
      train::memory_text(plan.memory(), planned.backend->memory_space()),
      planned.recomputation ? recomputation_text(planned) : "",
      shards ? "Reduce-scatter, and all-gather of the weights" : "All-reduce",
      plan.n_sums() == 1 ? "" : fmt::format("{} x ", plan.n_sums()), static_cast<double>(summed_bytes) / (1 << 20),
      ranks.nodes == 1 ? "" : traffic_text(planned), plan.buckets().size());
  for (const comm::Bucket& b : plan.buckets())
    text += fmt::format("  {:>9.2f} MiB  {} .. {}\n", static_cast<double>(b.size_bytes()) / (1 << 20), b.first_name,
                        b.last_name);
  const int on_node = ranks.on_first_node();
  text += fmt::format("\nBatch that fits: {} per {} (in {:.0f} % of {:.1f} GiB for {} on the node)\n", planned.fits,
                      plan.batch().is_tree ? "micro-batch" : "rank", 100 * train::kUsableMemory,
                      static_cast<double>(planned.backend->device().memory_bytes) / (1 << 30),
                      on_node == 1 ? "the one rank" : fmt::format("each of {} ranks", on_node));
  if (const int more = ranks.n % ranks.nodes; more > 0)
    text += fmt::format("{} of the {} nodes {} {} ranks, the others {}: this is the plan of a rank of the former.\n",
                        more, ranks.nodes, more == 1 ? "has" : "have", on_node, on_node - 1);
  using train::MemoryOf;
  const bool is_impossible = !planned.fits_in(MemoryOf::training_and_evaluation, 1);
  const char* const verdict = is_impossible ? "does NOT fit" : "fits only if little else needs memory";
  const bool only_training_fits = !planned.fits_in(MemoryOf::training_and_evaluation, train::kUsableMemory) &&
                                  planned.fits_in(MemoryOf::training, train::kUsableMemory);
  if (!planned.step_fits() && only_training_fits)
    text += fmt::format("The evaluation {}: a rank evaluates {} samples at once. Lower evaluation.batch_per_rank\n",
                        verdict, plan.evaluation_batch());
  else if (!planned.step_fits())
    text += fmt::format("This step {}: a rank processes {} at once. {}\n", verdict,
                        counted(plan.batch().largest_micro_batch(), "sample"),
                        plan.batch().largest_micro_batch() > 1
                            ? "Lower train.batch_per_rank, or set train.global_batch with train.accumulate=auto"
                            : "Use a smaller model or smaller samples, model.recompute=block or train.shard=optimizer");
  if (planned.offload) text += text_of(*planned.offload);
  if (planned.rates) text += text_of(*planned.rates);
  if (planned.cost) text += text_of(*planned.cost);
  if (!planned.launches.empty()) text += text_of(planned.launches, "What a step launches");
  if (!planned.decoding.empty()) text += text_of(planned.decoding, "What decoding a token launches");
  if (!planned.precision_warning.empty()) text += fmt::format("\nPrecision: {}\n", planned.precision_warning);
  return text + fmt::format("\nHow each layer runs on {}\n{}", planned.backend->device().name, choices(planned));
}

/// What the first and the last micro-batch of a step queue.
std::string steps_text(const Planned& planned) {
  train::StepPlan& plan = *planned.plan;
  const train::BatchShape& batch = plan.batch();
  const int last = batch.n_micro_batches - 1;
  std::string text;
  for (const int number : last == 0 ? std::vector{0} : std::vector{0, last}) {
    train::PlannedGraph& graph = plan.training(batch.micro_batch_size(number), batch.global_micro_batch_size(number));
    text += fmt::format("\nMicro-batch {} of {}\n{}", number + 1, last + 1,
                        train::list_of(plan, graph, {number, number == last}, nullptr).text());
  }
  return text;
}

PlannedCost cost_of(const Planned& planned, const Ranks& ranks, const std::string& model) {
  const Config& config = planned.config;
  const std::vector<comm::Bucket>& buckets = planned.plan->buckets();
  const scaling::Exchanged exchanged{.bytes = comm::exchanged_bytes(buckets),
                                     .buckets = static_cast<int>(buckets.size())};
  const std::int64_t global_batch = planned.plan->batch().global_batch;
  PlannedCost cost = planned_cost(model, ranks.n, ranks.nodes, global_batch, exchanged);
  cost.steps_per_epoch =
      data::Loader::steps_per_epoch(planned.task->train_set()->info().n_samples, global_batch, config.data.drop_last);
  cost.steps = cost.steps_per_epoch * config.train.epochs;
  if (config.train.max_steps > 0) cost.steps = std::min(cost.steps, config.train.max_steps);
  return cost;
}

}  // namespace

std::string plan_text(const Config& config, int ranks, int nodes) {
  const Ranks planned{.n = ranks, .nodes = nodes};
  return text_of(make_plan(config, planned, ""), planned);
}

void add_plan(CLI::App& app, Run& run) {
  struct CommandLine {
    std::vector<std::string> configuration;
    std::string deepspeed, json, device, model;
    Ranks ranks;
    bool steps = false;
  };
  auto options = std::make_shared<CommandLine>();
  CLI::App* command = app.add_subcommand("plan", "Report the memory and communication of a step, without training");
  add_configuration(*command, options->configuration);
  add_deepspeed(*command, options->deepspeed);
  add_number(*command, "--ranks", options->ranks.n, 1, kMaxRanks, "Number of ranks");
  add_number(*command, "--nodes", options->ranks.nodes, 1, kMaxRanks,
             "Number of nodes. Consecutive ranks are on one node; if they cannot be divided equally, the first nodes "
             "have one more");
  add_value(*command, "--device", "NAME", options->device,
            fmt::format("Plan for this GPU instead of the device of this machine: {}, or FILE.json with cuDNN's "
                        "description of one",
                        known_devices()));
  add_value(*command, "--model", "FILE", options->model,
            "The cost model of a scaling study (DIR/model.json of `lockstep scaling report --predict`): report "
            "time, efficiency and node-hours too");
  command->add_flag("--steps", options->steps,
                    "Print in order what a step queues too: the passes of each layer, the sums over ranks with their "
                    "bytes, and the update; with --device and --json, what each of them launches");
  add_json(*command, options->json);
  set_run(*command, run, [options] {
    const Config config = config::parse(options->configuration, options->deepspeed);
    std::vector<std::string> inputs = configuration_files(options->configuration, config);
    inputs.push_back(options->deepspeed);
    inputs.push_back(options->device);
    inputs.push_back(options->model);
    inputs.push_back(run::RunDirectory(config).file("algorithms.json"));
    check_outputs({options->json}, inputs);
    const Ranks& ranks = options->ranks;
    require(ranks.nodes <= ranks.n, ErrorCode::usage, "there are more nodes ({}) than ranks ({})", ranks.nodes,
            ranks.n);
    Planned planned = make_plan(config, ranks, options->device);
    if (!options->model.empty()) planned.cost = cost_of(planned, ranks, options->model);
    Json json = json_of(planned, ranks);
    if (options->steps) json["launches"] = json_of(planned.launches);
    if (options->steps && !planned.decoding.empty()) json["decoding"] = json_of(planned.decoding);
    report(options->json, json, text_of(planned, ranks) + (options->steps ? steps_text(planned) : ""));
  });
}

}  // namespace lockstep::commands
