#include "train/banner.h"

#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <string_view>

#include "base/numbers.h"
#include "base/process.h"
#include "base/version.h"
#include "lockstep/gpu_report.h"
#include "lockstep/log.h"
#include "train/batch_fit.h"
#include "train/schedule.h"

namespace lockstep::train {
namespace {

double mib(std::size_t size_bytes) { return static_cast<double>(size_bytes) / (1 << 20); }

/// The network settings for NCCL and Open MPI from the site or the user: "NCCL_SOCKET_IFNAME=eth0".
std::vector<std::string> network_settings() {
  std::vector<std::string> found;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view setting(*entry);
    for (const std::string_view prefix : {"NCCL_", "OMPI_MCA_btl", "OMPI_MCA_pml", "UCX_"})
      if (setting.starts_with(prefix) && !setting.starts_with("NCCL_HOME=")) found.emplace_back(setting);
  }
  std::sort(found.begin(), found.end());
  return found;
}

}  // namespace

std::string memory_text(const MemoryReport& m, MemorySpace space) {
  std::string text;
  const auto line = [&](const std::string& what, std::size_t size_bytes, const std::string& note) {
    text += fmt::format("  {:<19} {:>9.1f} MiB{}\n", what, mib(size_bytes), note.empty() ? "" : "  " + note);
  };
  constexpr const char* kShard = "of this rank's shard";
  line("parameters", m.parameters, m.shards_masters ? kShard : "");
  if (m.compute_weights > 0)
    line(fmt::format("weights ({})", name(m.compute_dtype)), m.compute_weights, m.shards_weights ? kShard : "");
  if (m.nf4_weights > 0)
    line("base (nf4)", m.nf4_weights,
         fmt::format("{:.3f} bytes for each of {} parameters",
                     static_cast<double>(m.nf4_weights) / static_cast<double>(m.n_in_nf4), m.n_in_nf4));
  if (m.shards_weights) line("gathered weights", m.gathered_weights, "of a few layers at a time");
  line("gradients", m.gradients, m.shards_gradients ? "sums of this rank's shard, and of buckets before that" : "");
  if (m.low_precision_gradients > 0)
    line(fmt::format("gradients ({})", name(m.compute_dtype)), m.low_precision_gradients, "before conversion to fp32");
  if (m.partial_sums > 0) line("partial sums", m.partial_sums, "of gradients: micro-batches summed by a tree");
  line("optimizer state", m.optimizer, m.shards_optimizer ? kShard : "");
  if (m.averages > 0) line("averages (ema)", m.averages, m.shards_optimizer ? kShard : "");
  line("activations", m.activations, fmt::format("{:.1f} MiB without reuse", mib(m.activations_without_reuse)));
  line("workspace", m.workspace, "");
  if (m.second_workspace > 0) line("second workspace", m.second_workspace, "of weight gradients on a second stream");
  line("exchange", m.exchange, "");
  if (m.node_buffers > 0) line("node buffers", m.node_buffers, "in host memory: for gradients that nodes exchange");
  line("uploaded batches", m.uploads, "");
  line("prefetched batches", m.loader, "in host memory");
  if (m.offloaded > 0) line("offloaded", m.offloaded, "in host memory: the optimizer, with buffers for its copies");
  line("checkpoint", m.checkpoint, "in host memory: the copy that is written while training continues");
  const std::size_t of_device = memory_of_device(m, space);
  line(space == MemorySpace::device ? "total on the device" : "total", of_device, "");
  if (space == MemorySpace::device) line("total on the host", m.total() - of_device, "");
  return text;
}

std::string batch_text(const BatchShape& batch) {
  const auto range = [](std::int64_t least, std::int64_t most) {
    return most == least ? fmt::to_string(most) : fmt::format("{} to {}", least, most);
  };
  if (!batch.is_tree)
    return fmt::format("{} in total = {} x {} x {} accumulated", batch.global_batch, counted(batch.ranks, "rank"),
                       range(batch.smallest_micro_batch(), batch.largest_micro_batch()), batch.n_micro_batches);
  const int most = batch.shards_of(0), least = batch.shards_of(batch.ranks - 1);
  return fmt::format("{} in total = {} micro-batches x {}, {} per rank", batch.global_batch, batch.n_shards(),
                     batch.largest_micro_batch(), range(least, most));
}

std::string parameters_text(const graph::ParameterTable& table) {
  const std::int64_t n = table.n_canonical(), n_trained = table.n_canonical_trainable();
  return fmt::format("{} parameters{}", n, n_trained < n ? fmt::format(", {} of them trained", n_trained) : "");
}

std::vector<std::string> learning_lines(const StepPlan& plan) {
  const Config::Optimizer& o = plan.config().optimizer;
  const std::int64_t batch = plan.batch().global_batch;
  const double factor = learning_rate_factor(o, batch);
  std::vector<std::string> lines;
  if (o.learning_rate_batch > 0)
    lines.push_back(fmt::format("learning rate: {:g} = {:g} x {} / {} (optimizer.learning_rate_batch)",
                                o.learning_rate * factor, o.learning_rate, batch, o.learning_rate_batch));
  for (const OptimizerGroup& group : plan.optimizer_groups())
    lines.push_back(fmt::format("optimizer group {}: {}, learning rate {:g}, weight decay {:g}", group.pattern,
                                counted(group.n_parameters, "tensor"), group.learning_rate * factor,
                                group.weight_decay));
  return lines;
}

void write_banner(Session& s) {
  const std::vector<std::string> places =
      s.world.all_gather(fmt::format("{}\t{}\t{}\t{}\t{}", s.world.host(), s.backend->device().name, processor_mask(),
                                     n_usable_processors(), n_processors()));
  if (!s.leader()) return;
  log::info("Lockstep {} ({}): {} on {}, {}", version(), commit(), s.run.path(), counted(s.world.size(), "rank"),
            counted(s.world.n_nodes(), "node"));
  for (std::size_t r = 0; r < places.size(); ++r) {
    std::vector<std::string> field(1);
    for (char c : places[r]) {
      if (c == '\t')
        field.emplace_back();
      else
        field.back() += c;
    }
    log::info("  rank {}: {} | {} | CPUs {}", r, field[0], field[1], field[2]);
    if (std::stoi(field[3]) == 1 && std::stoi(field[4]) > s.world.local_size())
      log::warning(
          "rank {} may use one CPU of {}, and its helper threads share it with the step: start with "
          "`mpirun --bind-to none`, or give each rank more with --map-by",
          r, field[4]);
  }
  if (s.config.device == "auto" && s.backend->memory_space() == MemorySpace::host)
    log::info("device: CPU, since {}", reason_for_no_gpu());
  const data::DatasetInfo& train_set = s.task->train_set()->info();
  std::string data = fmt::format("data: {} ({} of {})", train_set.path, counted(train_set.n_samples, "sample"),
                                 s.task->describe_samples());
  if (const auto set = s.task->validation_set())
    data += fmt::format("; validation: {} ({})", set->info().path, counted(set->info().n_samples, "sample"));
  log::info("{}", data);
  const tasks::ModelName model = s.task->model_name();
  log::info("model: {} ({}), {}", model.title, model.details, parameters_text(s.plan->parameters()));
  log::info("batch: {}; {} per epoch, {}", batch_text(s.plan->batch()), counted(s.steps_per_epoch, "step"),
            counted(s.last_step, "step"));
  for (const std::string& line : learning_lines(*s.plan)) log::info("{}", line);
  log::info("communication: {}; {} (comm.bucket_mb={:g})", s.communicator->describe(),
            counted(s.plan->buckets().size(), "bucket"), s.config.comm.bucket_mb);
  if (const auto settings = network_settings(); s.world.size() > 1 && !settings.empty())
    log::info("network settings: {}", fmt::join(settings, " "));
  if (const char* seconds = std::getenv("NCCL_TIMEOUT"); s.world.size() > 1 && seconds != nullptr)
    log::warning("NCCL_TIMEOUT has no effect: set comm.watchdog_seconds={} instead", seconds);
  log::info("memory of rank 0:\n{}", memory_text(s.plan->memory(), s.backend->memory_space()));
  for (const std::string& note : s.notes) log::info("{}", note);
  if (!s.resumed_from.empty()) log::info("resumed from {} (step {})", s.resumed_from, s.progress.step);
}

}  // namespace lockstep::train
