#include "commands/plan_speed.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "base/clock.h"
#include "base/file.h"
#include "base/matmul_rate.h"
#include "base/numbers.h"
#include "comm/world.h"
#include "graph/graph.h"
#include "lockstep/ops/add.h"
#include "train/replica.h"

namespace lockstep::commands {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::uint64_t kMaxBytes = std::uint64_t{1} << 24;
constexpr double kGigabyte = 1e9, kMegapixel = 1e6;

PartRate unknown(PartRate part, const char* key) {
  part.is_unknown = true;
  part.reason = fmt::format("hardware.{} is not set", key);
  return part;
}

PartRate storage_of(const Config::Hardware& h, const data::Dataset& set, int ranks_on_node) {
  PartRate part{.name = "storage", .key = "storage", .bytes_per_sample = set.stored_bytes(), .reason = ""};
  if (part.bytes_per_sample == 0) {
    part.reason = fmt::format("{} is not read from storage", set.info().path);
    return part;
  }
  if (h.storage_gb_per_second == 0) return unknown(part, "storage_gb_per_second");
  part.rate = h.storage_gb_per_second * kGigabyte / ranks_on_node / part.bytes_per_sample;
  part.reason = fmt::format("{:g} GB/s for a node, {} per sample", h.storage_gb_per_second,
                            size_text(static_cast<std::uint64_t>(part.bytes_per_sample)));
  return part;
}

/// One kind of work that a reader does for each sample.
struct WorkPart {
  const char* name;
  const char* key;  // of `hardware`
  double amount;    // per sample, in units of the key; 0: it is not done
  double rate;      // per second; 0: unknown
};

PartRate cores_of(const Config& config, const data::Dataset& set) {
  const Config::Hardware& h = config.hardware;
  const data::ReaderWork work = set.reader_work();
  PartRate part{.name = "cores", .key = "cores", .reason = ""};
  if (set.stored_bytes() == 0) {
    part.is_unknown = true;
    part.reason = fmt::format("{} is generated, at a rate that is not known", set.info().path);
    return part;
  }
  if (h.cores_per_rank == 0) return unknown(part, "cores_per_rank");
  const WorkPart parts[] = {
      {"decoding", "core_samples_per_second", work.decodes ? 1.0 : 0.0, h.core_samples_per_second},
      {"reading", "core_gb_per_second", work.read_bytes / kGigabyte, h.core_gb_per_second},
      {"resizing", "core_resize_megapixels_per_second", work.resized_pixels / kMegapixel,
       h.core_resize_megapixels_per_second},
      {"trivial_augment", "core_trivial_augment_megapixels_per_second", work.trivial_augment_pixels / kMegapixel,
       h.core_trivial_augment_megapixels_per_second},
      {"color_jitter", "core_color_jitter_megapixels_per_second", work.color_jitter_pixels / kMegapixel,
       h.core_color_jitter_megapixels_per_second},
  };
  double seconds = 0;
  std::string times;
  for (const WorkPart& one : parts) {
    if (one.amount == 0) continue;
    if (one.rate == 0) return unknown(part, one.key);
    seconds += one.amount / one.rate;
    times += fmt::format("{}{} {:.3g} ms", times.empty() ? "" : ", ", one.name, 1e3 * one.amount / one.rate);
  }
  const int used = std::min(config.data.readers, h.cores_per_rank);
  part.rate = used / seconds;
  part.reason = fmt::format("{} of {} cores read (data.readers={}), {}/s each: {}", used, h.cores_per_rank,
                            config.data.readers, with_commas(1 / seconds), times);
  return part;
}

PartRate transfer_of(const Config::Hardware& h, const data::Dataset& set, bool has_device) {
  PartRate part{.name = "PCIe", .key = "pcie", .reason = ""};
  if (!has_device) {
    part.reason = "batches stay in the memory of the host";
    return part;
  }
  part.bytes_per_sample = data::mean_sample_bytes(set);
  if (h.pcie_gb_per_second == 0) return unknown(part, "pcie_gb_per_second");
  part.rate = h.pcie_gb_per_second * kGigabyte / part.bytes_per_sample;
  part.reason = fmt::format("{:g} GB/s, {} per sample", h.pcie_gb_per_second,
                            size_text(static_cast<std::uint64_t>(part.bytes_per_sample)));
  return part;
}

PartRate device_of(const Config::Hardware& h, bool has_device) {
  PartRate part{.name = has_device ? "GPU" : "CPU", .key = "device", .reason = ""};
  if (h.device_samples_per_second == 0) return unknown(part, "device_samples_per_second");
  part.rate = h.device_samples_per_second;
  part.reason = "hardware.device_samples_per_second, which is that of one model and size of images";
  return part;
}

bool is_set(const Config::Hardware& h) {
  return h.cores_per_rank > 0 || h.core_samples_per_second > 0 || h.core_gb_per_second > 0 ||
         h.storage_gb_per_second > 0 || h.pcie_gb_per_second > 0 || h.device_samples_per_second > 0;
}

double rate_per_rank(const scaling::Prediction& prediction) {
  return prediction.size.samples_per_rank / prediction.step_seconds();
}

}  // namespace

const PartRate* DataRates::lowest() const {
  const PartRate* lowest = nullptr;
  for (const PartRate& part : parts)
    if (part.rate && (lowest == nullptr || *part.rate < *lowest->rate)) lowest = &part;
  return lowest;
}

std::optional<DataRates> data_rates(const Config& config, const data::Dataset& set, int ranks, int ranks_on_node,
                                    bool has_device) {
  const Config::Hardware& h = config.hardware;
  if (!is_set(h)) return {};
  return DataRates{.samples = set.sample_word(),
                   .ranks = ranks,
                   .parts = {storage_of(h, set, ranks_on_node), cores_of(config, set), transfer_of(h, set, has_device),
                             device_of(h, has_device)}};
}

std::string text_of(const DataRates& rates) {
  const auto cell = [](const PartRate& part, double factor) {
    return part.rate ? with_commas(*part.rate * factor) : part.is_unknown ? "unknown" : "-";
  };
  std::string text =
      fmt::format("\n{:<34}{:>12}{:>12}\n", rates.samples + "/s that each part sustains", "a rank", "all ranks");
  bool all_are_known = true;
  for (const PartRate& part : rates.parts) {
    text += fmt::format("  {:<32}{:>12}{:>12}  {}\n", part.name, cell(part, 1), cell(part, rates.ranks), part.reason);
    all_are_known = all_are_known && !part.is_unknown;
  }
  const PartRate* const lowest = rates.lowest();
  if (lowest == nullptr) return text;
  return text + fmt::format("The lowest{}: {}, with {} {}/s per rank.\n",
                            all_are_known ? "" : " of those that are known", lowest->name, with_commas(*lowest->rate),
                            rates.samples);
}

Json json_of(const DataRates& rates) {
  Json parts = Json::object();
  for (const PartRate& part : rates.parts)
    parts[part.key] = {{"samples_per_second_per_rank", part.rate ? Json(*part.rate) : nullptr},
                       {"is_unknown", part.is_unknown},
                       {"bytes_per_sample", part.bytes_per_sample}};
  const PartRate* const lowest = rates.lowest();
  parts["lowest"] = lowest == nullptr ? Json() : Json(lowest->key);
  return parts;
}

PlannedCost planned_cost(const std::string& path, int ranks, int nodes, std::int64_t global_batch,
                         const scaling::Exchanged& exchanged) {
  scaling::CostModel model = scaling::cost_model_in(read_file(path, kMaxBytes), path);
  model.exchanged = exchanged;
  PlannedCost cost{.prediction = model.predict(model.size(ranks, nodes, static_cast<double>(global_batch))),
                   .machines = machines_text(model),
                   .error = model.error};
  cost.knows_network =
      nodes == 1 || std::ranges::any_of(model.fitted, [](const scaling::CostSize& size) { return size.nodes > 1; });
  const scaling::CostSize& baseline = model.fitted.front();
  cost.baseline_ranks = baseline.ranks;
  cost.efficiency = rate_per_rank(cost.prediction) / rate_per_rank(model.predict(baseline));
  return cost;
}

std::string text_of(const PlannedCost& cost) {
  const scaling::Prediction& p = cost.prediction;
  return fmt::format(
      "\nTime, by the cost model of the study (error of the fit: {:.1f} %)\n"
      "  cores       {} per core: {}\n"
      "  step        {:.4f} s ({:.4f} to {:.4f}): compute {:.4f}, exposed communication {:.4f}, data {:.4f}\n"
      "  epoch       {} ({})\n"
      "  training    {} ({}), {:.3g} node-hours\n"
      "  efficiency  {:.0f} % of the speed per rank on {}\n{}",
      100 * cost.error, sharing_text(p.size) + (p.size.sharing > 1 ? " ranks" : " rank"), cost.machines,
      p.step_seconds(), p.low, p.high, p.compute_seconds, p.exposed_seconds, p.data_seconds,
      duration_text(cost.epoch_seconds()), counted(cost.steps_per_epoch, "step"), duration_text(cost.seconds()),
      counted(cost.steps, "step"), cost.node_hours(), 100 * cost.efficiency, counted(cost.baseline_ranks, "rank"),
      cost.knows_network ? ""
                         : "  The study had no case on several nodes: what the network between nodes costs is not in "
                           "these figures.\n");
}

Json json_of(const PlannedCost& cost) {
  const scaling::Prediction& p = cost.prediction;
  return {{"samples_per_rank", p.size.samples_per_rank},
          {"sharing", p.size.sharing},
          {"step_seconds", p.step_seconds()},
          {"interval_low", p.low},
          {"interval_high", p.high},
          {"compute_seconds", p.compute_seconds},
          {"exposed_communication_seconds", p.exposed_seconds},
          {"data_wait_seconds", p.data_seconds},
          {"steps_per_epoch", cost.steps_per_epoch},
          {"epoch_seconds", cost.epoch_seconds()},
          {"steps", cost.steps},
          {"seconds", cost.seconds()},
          {"node_hours", cost.node_hours()},
          {"efficiency", cost.efficiency},
          {"baseline_ranks", cost.baseline_ranks},
          {"knows_network", cost.knows_network}};
}

std::vector<PlannedLaunch> list_launches(train::StepPlan& plan, Backend& backend) {
  const train::BatchShape& shape = plan.batch();
  const auto world = comm::single_world();
  const auto communicator = comm::make_communicator(plan.config().comm, *world, backend);
  const LaunchList of_preparation;
  train::Replica replica(plan, backend, *communicator);
  const auto run_step = [&] {
    replica.begin_step(shape, {});
    for (int i = 0; i < shape.n_micro_batches; ++i) {
      data::Batch batch;
      batch.n_samples = shape.micro_batch_size(i);
      for (const data::Field& field : plan.largest().batch) {
        const std::size_t n_bytes = static_cast<std::size_t>(shape.largest_micro_batch()) * field.size_bytes();
        batch.fields.emplace_back(static_cast<const std::byte*>(nullptr), n_bytes);
        if (field.packing == data::Packing::packed) batch.packed_bytes = n_bytes;
      }
      replica.run(batch);
    }
  };
  run_step();  // also rounds the initial weights
  const LaunchList list;
  run_step();
  return grouped(list.entries());
}

std::vector<PlannedLaunch> grouped(const std::vector<LaunchList::Entry>& entries) {
  std::vector<PlannedLaunch> found;
  for (const LaunchList::Entry& entry : entries) {
    if (found.empty() || found.back().entry != entry) found.push_back({.entry = entry, .n = 0});
    ++found.back().n;
  }
  return found;
}

std::string text_of(const std::vector<PlannedLaunch>& launches, const char* title) {
  struct Sum {
    int n = 0;
    double bytes = 0, flops = 0;
  };
  std::map<std::string_view, Sum> kinds;
  for (const auto& [entry, n] : launches) {
    const Launch& launch = entry.launch;
    Sum& sum = kinds[launch.kind.empty() ? "not counted" : launch.kind];
    sum.n += n;
    sum.bytes += n * launch.bytes;
    sum.flops += n * launch.flops;
  }
  std::string text = fmt::format("\n{:<34}{:>12}{:>12}{:>12}\n", title, "launches", "GB", "TFLOP");
  for (const auto& [kind, sum] : kinds)
    text += fmt::format("  {:<32}{:>12}{:>12.2f}{:>12.2f}\n", kind, sum.n, sum.bytes / kGigabyte, 1e-12 * sum.flops);
  return text;
}

namespace {

/// The least seconds of a launch, if it moves its bytes, or multiplies, at the rates of the device.
double floor_of(const Launch& launch, const DeviceInfo& device) {
  const double rate = (launch.kind == "matmul, fp8" ? 2 : 1) * device.flops_per_second;
  return std::max(launch.bytes / device.bytes_per_second, launch.flops / rate);
}

struct PassFloors {
  double forward = 0, backward = 0;  // seconds; what is recomputed belongs to the backward pass
};

/// Of the launches of a layer, or of all; no value: the rates of the device are not known.
std::optional<PassFloors> floors_of(const std::vector<PlannedLaunch>& launches, const std::string* layer,
                                    const DeviceInfo& device) {
  if (device.bytes_per_second == 0 || device.flops_per_second == 0) return {};
  PassFloors floors;
  for (const auto& [entry, n] : launches) {
    if (layer && entry.part != *layer) continue;
    const double seconds = n * floor_of(entry.launch, device);
    if (entry.phase == trace::name(trace::Kind::forward))
      floors.forward += seconds;
    else if (entry.phase == trace::name(trace::Kind::backward) || entry.phase == graph::kRecompute)
      floors.backward += seconds;
  }
  return floors;
}

}  // namespace

std::string floor_text(const std::vector<PlannedLaunch>& launches, const std::string& layer, const DeviceInfo& device) {
  const auto floors = floors_of(launches, &layer, device);
  if (!floors || floors->forward + floors->backward == 0) return "";
  return fmt::format("; floor {:.2f} ms forward, {:.2f} ms backward", 1e3 * floors->forward, 1e3 * floors->backward);
}

Json json_of(const std::vector<PlannedLaunch>& launches) {
  Json out = Json::array();
  for (const auto& [entry, n] : launches) {
    const Launch& launch = entry.launch;
    out.push_back({{"phase", entry.phase},
                   {"part", entry.part},
                   {"kind", launch.kind},
                   {"launches", n},
                   {"bytes", launch.bytes},
                   {"flops", launch.flops},
                   {"blocks", launch.blocks},
                   {"steps", launch.steps}});
  }
  return out;
}

OffloadReport report_offload(const train::StepPlan& plan, const std::vector<PlannedLaunch>& launches,
                             const DeviceInfo& device) {
  const Config::Hardware& h = plan.config().hardware;
  OffloadReport report{.traffic = train::OffloadedOptimizer::traffic(plan)};
  const auto seconds = [](std::size_t bytes, double gb_per_second) -> std::optional<double> {
    if (gb_per_second == 0) return {};
    return static_cast<double>(bytes) / (gb_per_second * kGigabyte);
  };
  report.sums = seconds(report.traffic.sums, h.pcie_gb_per_second);
  report.weights = seconds(report.traffic.weights, h.pcie_gb_per_second);
  report.update = seconds(report.traffic.update, h.memory_gb_per_second);
  if (launches.empty()) return report;
  if (const auto floors = floors_of(launches, nullptr, device)) {
    report.forward = floors->forward / plan.batch().n_micro_batches;
    report.backward = floors->backward / plan.batch().n_micro_batches;
  }
  return report;
}

std::optional<double> OffloadReport::exposed_in_backward() const {
  if (!sums || !backward) return {};
  return std::max(0.0, *sums - *backward);
}
std::optional<double> OffloadReport::exposed_in_forward() const {
  if (!weights || !update || !forward) return {};
  return std::max(0.0, std::max(*weights, *update) - *forward);  // buckets are copied while others are updated
}

std::string text_of(const OffloadReport& r) {
  const auto row = [](const char* name, std::size_t bytes, std::optional<double> seconds, const char* key) {
    return fmt::format("  {:<24}{:>9.2f} GB  {}\n", name, static_cast<double>(bytes) / kGigabyte,
                       seconds ? fmt::format("{:.0f} ms", 1e3 * *seconds) : fmt::format("hardware.{} is not set", key));
  };
  const auto verdict = [](const char* pass, std::optional<double> least, std::optional<double> exposed) {
    if (!least) return fmt::format("the {} pass: unknown without --device", pass);
    const std::string text = fmt::format("the {} pass of a micro-batch, at least {:.0f} ms", pass, 1e3 * *least);
    if (!exposed) return text + ": unknown";
    return *exposed == 0 ? text + ": hidden" : fmt::format("{}: up to {:.0f} ms exposed", text, 1e3 * *exposed);
  };
  return fmt::format(
      "\nOffloaded optimizer, per step and rank\n{}{}{}  Sums beside {}.\n  Update and weights beside {}.\n",
      row("sums to the host", r.traffic.sums, r.sums, "pcie_gb_per_second"),
      row("update on the host", r.traffic.update, r.update, "memory_gb_per_second"),
      row("weights to the device", r.traffic.weights, r.weights, "pcie_gb_per_second"),
      verdict("last backward", r.backward, r.exposed_in_backward()),
      verdict("first forward", r.forward, r.exposed_in_forward()));
}

Json json_of(const OffloadReport& r) {
  const auto value = [](const std::optional<double>& seconds) { return seconds ? Json(*seconds) : Json(); };
  return {{"sums_bytes", r.traffic.sums},
          {"weights_bytes", r.traffic.weights},
          {"update_bytes", r.traffic.update},
          {"sums_seconds", value(r.sums)},
          {"weights_seconds", value(r.weights)},
          {"update_seconds", value(r.update)},
          {"exposed_in_backward_seconds", value(r.exposed_in_backward())},
          {"exposed_in_forward_seconds", value(r.exposed_in_forward())}};
}

namespace {

double bytes_of(const graph::Graph& graph, graph::Node& node) {
  double bytes = 0;
  for (const auto* ids : {&node.inputs(), &node.outputs()})
    for (const graph::ActivationId id : *ids) bytes += static_cast<double>(graph.activation(id).size_bytes());
  for (const graph::ParameterUse* use : node.parameters())
    if (use->exists())
      bytes += static_cast<double>(graph.parameters()[use->id()].n_elements * size_bytes(use->dtype()));
  return bytes;
}

/// The bytes per second that the op `add` reads and writes, with tensors that are too large for the caches.
double measure_bandwidth(Backend& backend) {
  constexpr std::int64_t kElements = std::int64_t{32} << 20;  // 128 MiB
  constexpr double kSeconds = 0.1;
  const auto op = backend.make(AddDescription{.n_elements = kElements});
  const std::size_t size_bytes = static_cast<std::size_t>(kElements) * sizeof(float);
  const auto a = backend.allocate(size_bytes, "a sum whose speed is measured");
  const auto b = backend.allocate(size_bytes, "a sum whose speed is measured");
  const auto stream = backend.make_stream();
  for (const auto* memory : {&a, &b}) fill_random(backend, **memory, DType::fp32, *stream);
  const double shortest = shortest_seconds(1, kSeconds, [&] {
    op->forward({.a = a->data(), .b = b->data(), .y = a->data()}, {}, *stream);
    stream->synchronize();
  });
  return 3 * static_cast<double>(size_bytes) / shortest;
}

RecomputedWork recomputed_work(const graph::Graph& graph) {
  RecomputedWork work;
  for (const graph::Entry& entry : graph.order().entries()) {
    if (entry.phase != graph::Phase::recompute) continue;
    graph::Node& node = *graph.nodes()[static_cast<std::size_t>(entry.node)];
    const double bytes = bytes_of(graph, node);
    if (const auto* counted = dynamic_cast<const graph::CountsFlops*>(&node))
      work.flops += counted->flops().forward;
    else
      work.other_bytes += bytes;
    work.bytes += bytes;
    ++work.n_nodes;
  }
  return work;
}

}  // namespace

RecomputationReport report_recomputation(train::StepPlan& plan, const train::StepPlan& kept, Backend* device) {
  const train::BatchShape& batch = plan.batch();
  const graph::Graph* largest = nullptr;
  for (int i = 0; i < batch.n_micro_batches; ++i)
    if (batch.micro_batch_size(i) == batch.largest_micro_batch())
      largest = plan.training(batch.micro_batch_size(i), batch.global_micro_batch_size(i)).graph.get();
  RecomputationReport report{.activation_bytes = plan.memory(train::MemoryOf::training).activations,
                             .kept_activation_bytes = kept.memory(train::MemoryOf::training).activations,
                             .added = recomputed_work(*largest),
                             .model_flops = graph::flops_of(*largest),
                             .seconds = {}};
  if (device)
    report.seconds = report.added.flops / measure_matmul_rate(*device, plan.config().precision) +
                     report.added.other_bytes / measure_bandwidth(*device);
  return report;
}

}  // namespace lockstep::commands
