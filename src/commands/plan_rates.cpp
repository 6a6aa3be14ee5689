#include "commands/plan_rates.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/number_text.h"

namespace lockstep::commands {
namespace {

constexpr double kGigabyte = 1e9;

/// "110 kB"
std::string size_text(double size_bytes) {
  return size_bytes < 1e6 ? fmt::format("{:.3g} kB", size_bytes / 1e3) : fmt::format("{:.3g} MB", size_bytes / 1e6);
}

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
  part.reason =
      fmt::format("{:g} GB/s for a node, {} per sample", h.storage_gb_per_second, size_text(part.bytes_per_sample));
  return part;
}

PartRate cores_of(const Config& config) {
  const Config::Hardware& h = config.hardware;
  PartRate part{.name = "cores", .key = "cores", .reason = ""};
  if (h.cores_per_rank == 0) return unknown(part, "cores_per_rank");
  if (h.core_samples_per_second == 0) return unknown(part, "core_samples_per_second");
  const int used = std::min(config.data.readers, h.cores_per_rank);
  part.rate = used * h.core_samples_per_second;
  part.reason = fmt::format("{} of {} cores read (data.readers={}), {:g}/s each", used, h.cores_per_rank,
                            config.data.readers, h.core_samples_per_second);
  return part;
}

PartRate transfer_of(const Config::Hardware& h, const data::Dataset& set, bool has_device) {
  const std::vector<data::Field> fields = set.fields();
  PartRate part{
      .name = "PCIe", .key = "pcie", .bytes_per_sample = static_cast<double>(data::sample_bytes(fields)), .reason = ""};
  if (!has_device) {
    part.bytes_per_sample = 0;
    part.reason = "batches stay in the memory of the host";
    return part;
  }
  if (h.pcie_gb_per_second == 0) return unknown(part, "pcie_gb_per_second");
  part.rate = h.pcie_gb_per_second * kGigabyte / part.bytes_per_sample;
  part.reason = fmt::format("{:g} GB/s, {} per sample", h.pcie_gb_per_second, size_text(part.bytes_per_sample));
  return part;
}

PartRate device_of(const Config::Hardware& h, bool has_device) {
  PartRate part{.name = has_device ? "GPU" : "CPU", .key = "device", .reason = ""};
  if (h.device_samples_per_second == 0) return unknown(part, "device_samples_per_second");
  part.rate = h.device_samples_per_second;
  part.reason = "hardware.device_samples_per_second";
  return part;
}

bool is_set(const Config::Hardware& h) {
  return h.cores_per_rank > 0 || h.core_samples_per_second > 0 || h.storage_gb_per_second > 0 ||
         h.pcie_gb_per_second > 0 || h.device_samples_per_second > 0;
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
                   .parts = {storage_of(h, set, ranks_on_node), cores_of(config), transfer_of(h, set, has_device),
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

nlohmann::ordered_json json_of(const DataRates& rates) {
  nlohmann::ordered_json parts = nlohmann::ordered_json::object();
  for (const PartRate& part : rates.parts)
    parts[part.key] = {{"samples_per_second_per_rank", part.rate ? nlohmann::ordered_json(*part.rate) : nullptr},
                       {"is_unknown", part.is_unknown},
                       {"bytes_per_sample", part.bytes_per_sample}};
  const PartRate* const lowest = rates.lowest();
  parts["lowest"] = lowest == nullptr ? nlohmann::ordered_json() : nlohmann::ordered_json(lowest->key);
  return parts;
}

}  // namespace lockstep::commands
