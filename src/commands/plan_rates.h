// The samples per second that each part of the data path can sustain, according to a hardware file (the keys of
// `hardware`). What the file does not describe is reported as unknown.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "data/dataset.h"
#include "lockstep/config.h"

namespace lockstep::commands {

struct PartRate {
  std::string name;              // "storage", "cores", "PCIe", "GPU"
  std::string key;               // in --json
  std::optional<double> rate{};  // samples/s of a rank; no value: unknown, or there is no limit
  bool is_unknown = false;       // a key of `hardware` is missing
  double bytes_per_sample = 0;   // that pass through this part; 0: not counted
  std::string reason;            // of the rate, or why there is none
};

struct DataRates {
  std::string samples;  // what samples are called
  int ranks = 1;
  std::vector<PartRate> parts;

  /// The part with the lowest known rate; null if no rate is known.
  const PartRate* lowest() const;
};

/// `ranks_on_node`: the ranks that share the storage of a node. `has_device`: batches are copied to a GPU. No value: no
/// key of `hardware` is set.
std::optional<DataRates> data_rates(const Config& config, const data::Dataset& set, int ranks, int ranks_on_node,
                                    bool has_device);

std::string text_of(const DataRates& rates);
nlohmann::ordered_json json_of(const DataRates& rates);

}  // namespace lockstep::commands
