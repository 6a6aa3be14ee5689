// lockstep plan: memory per rank by kind, buckets, bytes per all-reduce, the batch that fits. No training.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>

#include "commands/commands.h"
#include "commands/plan_text.h"
#include "commands/report.h"
#include "config/parser.h"
#include "train/algorithm_store.h"
#include "train/banner.h"
#include "train/session.h"

namespace lockstep::commands {

namespace {

constexpr int kMaxRanks = 1 << 20;

struct Ranks {
  int n = 1, nodes = 1;
  int on_first_node() const { return (n + nodes - 1) / nodes; }
};

struct Planned {
  data::ImageSetInfo images;
  std::unique_ptr<Backend> backend;
  std::unique_ptr<train::StepPlan> plan;
  std::string precision_warning;  // empty: none
};

Planned make_plan(const Config& config, const Ranks& ranks, const data::ImageSetInfo& images) {
  Planned planned;
  planned.images = images;
  const auto algorithms = config.reproducible ? nullptr : std::make_shared<Algorithms>();
  planned.backend = make_backend({.device = config.device,
                                  .threads = config.cpu.threads,
                                  .local_rank = 0,
                                  .local_size = ranks.on_first_node(),
                                  .algorithms = algorithms});
  planned.precision_warning = planned.backend->check_precision(config.precision);
  const train::BatchShape batch = train::batch_shape(config, 0, ranks.n);
  if (algorithms)  // what is not remembered runs in a fixed way
    algorithms->remember(
        train::AlgorithmStore(train::RunDirectory(config), planned.backend->device(), batch.largest_piece()).load());
  planned.plan =
      std::make_unique<train::StepPlan>(config, images, batch, *planned.backend,
                                        comm::topology_of(config.comm, comm::supposed_ranks(ranks.n, ranks.nodes),
                                                          batch.order_over_ranks(), planned.backend->memory_space()));
  return planned;
}

/// The largest batch a rank, or micro-batch, whose step fits into its share of the memory: activations and workspace
/// grow with it.
std::int64_t batch_that_fits(const Config& config, const Ranks& ranks, const Planned& planned) {
  const auto total_of = [&](std::int64_t batch) {
    Config other = config;
    other.train.batch_per_rank = config.train.micro_batches > 0 ? 0 : batch;
    other.train.global_batch = config.train.micro_batches * batch;
    return make_plan(other, ranks, planned.images).plan->memory().total();
  };
  const std::int64_t small = 8, large = 16;
  const double fixed_and_small = static_cast<double>(total_of(small));
  const double per_sample =
      (static_cast<double>(total_of(large)) - fixed_and_small) / static_cast<double>(large - small);
  const double room = static_cast<double>(planned.backend->device().memory_bytes) - fixed_and_small;
  return std::max<std::int64_t>(0, small + static_cast<std::int64_t>(room / std::max(1.0, per_sample)));
}

std::string choices(const train::StepPlan& plan) {
  std::string text;
  for (const auto& node : plan.largest().graph->nodes())
    if (node->op()) text += fmt::format("  {:<22} {}\n", node->name(), node->op()->describe());
  return text;
}

nlohmann::ordered_json json_of(const Planned& planned, const Ranks& ranks) {
  const train::MemoryReport m = planned.plan->memory();
  nlohmann::ordered_json buckets = nlohmann::ordered_json::array();
  for (const comm::Bucket& b : planned.plan->buckets())
    buckets.push_back({{"first", b.first_name}, {"last", b.last_name}, {"size_bytes", b.n_elements * sizeof(float)}});
  return {{"ranks", ranks.n},
          {"nodes", ranks.nodes},
          {"batch_per_rank", planned.plan->batch().largest_piece()},
          {"global_batch", planned.plan->batch().global_batch},
          {"parameters", planned.plan->parameters().n_canonical()},
          {"memory_bytes",
           {{"parameters", m.parameters},
            {"gradients", m.gradients},
            {"partial_sums", m.partial_sums},
            {"optimizer", m.optimizer},
            {"activations", m.activations},
            {"activations_without_reuse", m.activations_without_reuse},
            {"workspace", m.workspace},
            {"exchange", m.exchange},
            {"node_buffers", m.node_buffers},
            {"mapped_peers", m.mapped_peers},
            {"uploads", m.uploads},
            {"loader", m.loader},
            {"checkpoint", m.checkpoint},
            {"total", m.total()}}},
          {"buckets", buckets}};
}

std::string text_of(const Config& config, const Planned& planned, const Ranks& ranks) {
  const train::StepPlan& plan = *planned.plan;
  std::string text = fmt::format(
      "{}-{}, {} parameters, {}; batch {}\n\nMemory of a rank\n{}\nAll-reduce, {:.1f} MiB a step in {} buckets\n",
      config.model.family, config.model.depth, plan.parameters().n_canonical(), name(config.precision),
      train::batch_text(plan.batch()), train::memory_text(plan.memory()),
      static_cast<double>(plan.memory().gradients) / (1 << 20), plan.buckets().size());
  for (const comm::Bucket& b : plan.buckets())
    text += fmt::format("  {:>9.2f} MiB  {} .. {}\n", static_cast<double>(b.n_elements * sizeof(float)) / (1 << 20),
                        b.first_name, b.last_name);
  text += fmt::format("\nBatch that fits: about {} a {} ({:.1f} GiB for each of {} ranks on its node)\n",
                      batch_that_fits(config, ranks, planned), plan.batch().is_tree ? "micro-batch" : "rank",
                      static_cast<double>(planned.backend->device().memory_bytes) / (1 << 30), ranks.on_first_node());
  if (!planned.precision_warning.empty()) text += fmt::format("\nPrecision: {}\n", planned.precision_warning);
  return text + fmt::format("\nHow each layer runs on {}\n{}", planned.backend->device().name, choices(plan));
}

}  // namespace

PlanReport plan_report(const Config& config, int n_ranks, int nodes) {
  require(nodes <= n_ranks, ErrorCode::usage, "{} nodes are more than the {} ranks", nodes, n_ranks);
  const Ranks ranks{.n = n_ranks, .nodes = nodes};
  const Planned planned = make_plan(config, ranks, train::open_train_set(config)->info());
  return {.text = text_of(config, planned, ranks), .json = json_of(planned, ranks)};
}

void add_plan(CLI::App& app, Run& run, const Arguments&) {
  struct Given {
    std::vector<std::string> configuration;
    std::string json;
    int ranks = 1, nodes = 1;
  };
  auto given = std::make_shared<Given>();
  CLI::App* command = app.add_subcommand("plan", "what a step will hold and move; nothing is trained");
  command->add_option("CONFIG", given->configuration, "YAML files and key=value overrides; the later wins")->required();
  command->add_option("--ranks", given->ranks, "ranks to plan for")
      ->check(CLI::Range(1, kMaxRanks))
      ->capture_default_str();
  command->add_option("--nodes", given->nodes, "nodes that the ranks are on, in equal blocks")
      ->check(CLI::Range(1, kMaxRanks))
      ->capture_default_str();
  add_json(*command, given->json);
  command->callback([given, &run] {
    run = [given] {
      const PlanReport plan = plan_report(config::parse(given->configuration), given->ranks, given->nodes);
      report(given->json, plan.json, plan.text);
      return 0;
    };
  });
}

}  // namespace lockstep::commands
