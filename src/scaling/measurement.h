// What one finished case has measured: from the files of its run (metrics.jsonl, metrics.json, usage/), and from what
// was recorded about its nodes. DIR/cases/NAME/finished.json holds it, which is all that a report reads.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

namespace lockstep::scaling {

// Figures of repeated measurements: mean, spread, and the 95 % confidence interval of the mean by Student's t
// distribution, which assumes that the repeats are independent and normally distributed. One value has no interval, nor
// have two: theirs would be 12.7 standard errors wide to each side, and thus tell nothing.

inline constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();

inline constexpr int kLeastForInterval = 3;

struct Figure {
  int n = 0;  // values; 0: all other members are kUnknown
  double mean = kUnknown, minimum = kUnknown, maximum = kUnknown;
  double deviation = kUnknown;   // of the sample, with n - 1; kUnknown for one value
  double half_width = kUnknown;  // of the interval of the mean; kUnknown for fewer than kLeastForInterval values
  /// The ends of the interval, which is not negative if no value is.
  double low() const { return minimum >= 0 && half_width > mean ? 0 : mean - half_width; }
  double high() const { return mean + half_width; }
};

/// Values that are not finite are left out.
Figure figure_of(std::span<const double> values);

/// The quantile of Student's t distribution at 0.975. Degrees of freedom that are not whole are rounded down, which
/// makes the interval wider. At least 1.
double student_t(double degrees_of_freedom);

/// numerator / denominator of two independent figures. The interval is that of first-order propagation of the standard
/// errors, with the degrees of freedom of Welch and Satterthwaite. The spread is that of the values of the numerator,
/// divided by the mean of the denominator.
Figure ratio_of(const Figure& numerator, const Figure& denominator);
/// Each value multiplied by `factor`, which is positive.
Figure scaled(const Figure& figure, double factor);
/// 1 / figure of a positive one: the least value becomes the greatest, and spreads are converted to first order.
Figure inverted(const Figure& figure);

/// The value that occurs most often, or the smallest of several; kUnknown if there is none.
double mode_of(std::span<const double> values);

/// Whether the values still fall: the mean of the first third is greater than that of the others by more than 10 %, and
/// by more than three standard errors of the difference. With fewer than six values, the result is false.
bool still_falls(std::span<const double> values);

struct Host {
  std::string name{};
  std::string machine{};  // the same for hosts that share the cores of one machine; empty: unknown
  int ranks = 0;
  double cores = 0;        // 0: unknown; may be fractional if processor time is limited
  double busy = kUnknown;  // cores that other programs kept busy: locally during the case, with Slurm just before
  /// What the cores belong to: the machine or, if it is unknown, the host.
  const std::string& owner() const { return machine.empty() ? name : machine; }
};

/// What some hosts share.
struct Machine {
  int hosts = 0, ranks = 0;
  double cores = 0;  // 0: unknown
  /// Ranks per core, if there are fewer cores than ranks; otherwise 1. A rank that may use only part of a core shares
  /// it with nobody.
  double sharing() const { return cores > 0 ? std::max(1.0, ranks / std::max(1.0, cores)) : 1; }
};
/// The machines by their names, Host::owner().
std::map<std::string, Machine> machines_of(const std::vector<Host>& hosts);

struct Measurement {
  std::string build{};                                 // build_text() of the program that ran
  int ranks = 0;                                       // 0: their number changed while the run was trained
  double started_unix = kUnknown, seconds = kUnknown;  // of the case, with its start
  std::vector<Host> hosts{};
  std::vector<std::string> other_jobs{};  // Slurm jobs on the same nodes when it started

  std::string unit{};                                    // "samples" or "tokens"
  std::vector<double> step_seconds{};                    // of all steps, from the first
  std::vector<double> step_counts{};                     // samples or tokens of each step, over all ranks
  std::vector<double> step_losses{}, step_accuracies{};  // step_accuracies: empty if the task has none
  // Of the whole run: all its steps, without evaluations and checkpoints; and of its last epoch, if it has any
  double training_seconds = kUnknown;
  double epoch_rate = kUnknown, epoch_loss = kUnknown, epoch_accuracy = kUnknown;  // epoch_rate: units per second
  double validation_loss = kUnknown, validation_accuracy = kUnknown;
  double global_batch = kUnknown;  // samples
  bool has_gpus = false;           // whether there is one for each rank
  // Of the first GPU of the node of rank 0, or of the process of rank 0, after the warm-up
  double memory_peak_bytes = kUnknown, memory_mean_bytes = kUnknown, memory_mode_bytes = kUnknown;
  // Means over ranks and steps after the warm-up; utilisations are parts of 1, the others seconds per step
  double utilisation = kUnknown, model_flops_rate = kUnknown, model_flops_utilization = kUnknown;
  double exposed_communication_seconds = kUnknown, data_wait_seconds = kUnknown;
  double exchange_seconds = kUnknown;  // time of a step's sums over ranks, hidden or not; unknown with NCCL
  double exchanged_bytes = kUnknown, buckets = kUnknown;  // of these sums
};

struct Study;
/// Measures a run that is done. `hosts` has no ranks yet. Throws study_damaged if the files are not those of a run with
/// the steps or the epochs of the study; without these, any number of steps will do.
Measurement measure(const std::string& run, const Study& study);

nlohmann::ordered_json json_of(const Measurement& measurement);
/// The opposite. Throws study_damaged, naming `path`.
Measurement measurement_in(const std::string& text, const std::string& path);

}  // namespace lockstep::scaling
