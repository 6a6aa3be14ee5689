// The ranges of training samples (data.start, data.end) on which a model was trained one after the other, when a run
// is resumed with another range or starts from the weights of another run. Checkpoints record them as `slices`, and the
// step at which the present one began as `slice_begin`, if there is more than one.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "lockstep/config.h"

namespace lockstep::run {

struct DataRange {
  std::int64_t start = 0, end = 0;  // samples; both 0: all
  std::int64_t steps = 0;           // of training with it
  bool operator==(const DataRange&) const = default;
  bool is_all() const { return start == 0 && end == 0; }
};
/// The range that a configuration gives as text. What it does not give is that of `otherwise`.
DataRange range_in(const std::string& configuration, DataRange otherwise = {});

struct Slices {
  std::vector<DataRange> earlier{};  // oldest first
  std::int64_t begin = 0;            // the step at which the present one began
};

/// What a checkpoint records, with nothing about its own slice.
Slices slices_of(const nlohmann::json& state);
/// Adds them to a state, unless there is only one slice.
void add_slices(const Slices& slices, nlohmann::json& state);
/// Those of a run that resumes from a checkpoint with this state.
Slices slices_after(const nlohmann::json& state, const Config& now);
/// Those of a run that starts from the weights of a checkpoint with this state: the slice of the checkpoint is then an
/// earlier one. None if neither run has a range.
Slices slices_before(const nlohmann::json& state, const Config& now);

}  // namespace lockstep::run
