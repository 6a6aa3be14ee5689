// The results of an evaluation by class: the confusion matrix, from which the accuracy of each class follows, and the
// top-5 accuracy. A sample is predicted as the class of its greatest output; of equal ones, the first.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tasks/task.h"

namespace lockstep::tasks {

class ClassTally final : public Tally {
 public:
  /// `names`: of the classes; those that it lacks are shown by their numbers.
  ClassTally(int n_classes, std::vector<std::string> names);

  void add(const data::Batch& batch, std::span<const float> outputs) override;
  std::string counts() const override;
  void add_counts(std::string_view counts) override;
  nlohmann::ordered_json json() const override;
  std::string summary() const override;
  std::string text() const override;
  std::string picture(const std::string& title) const override;

  /// One sample.
  void add(std::int32_t label, std::span<const float> outputs);
  std::int64_t count(int label, int predicted) const { return counts_[place(label, predicted)]; }
  std::int64_t samples_of(int label) const;
  std::int64_t n_samples() const;
  double accuracy_of(int label) const;  // 0 without samples
  double top5_accuracy() const;         // 0 without samples

 private:
  std::size_t place(int label, int predicted) const {
    return 1 + static_cast<std::size_t>(label) * static_cast<std::size_t>(n_classes_) +
           static_cast<std::size_t>(predicted);
  }
  std::string matrix_text() const;
  std::string worst_text() const;

  int n_classes_;
  std::vector<std::string> names_, shown_names_;  // shown: in tables
  // The number of samples whose label is among the five greatest outputs; then the matrix (label, predicted class).
  std::vector<std::int64_t> counts_;
};

/// An SVG picture of a confusion matrix. `share(label, predicted)` is the share of the label's samples, 0 to 1.
std::string confusion_picture(const std::string& title, const ClassTally& tally, const std::vector<std::string>& names);

}  // namespace lockstep::tasks
