// DIR/model.json and DIR/predictions.json: the cost model of a study, and what it predicts for sizes that were not run
// when it was fitted. A prediction is never changed after its size has been measured, so that a report compares the two
// honestly.
#pragma once

#include <optional>
#include <vector>

#include "scaling/cost_model.h"
#include "scaling/results.h"

namespace lockstep::scaling {

/// Fits the model to the averaged cases. Throws usage if they do not suffice (fit_cost_model()).
CostModel fit_cost_model(const Results& results);

/// A size of this study that need not have been run, with the batch and the machines of the study. `number`: the number
/// of ranks or, if the study was submitted with more than one node, of nodes. The number of ranks per node stays the
/// same.
CostSize size_to_predict(const Results& results, const CostModel& model, int number);

/// Fits the model, predicts these sizes, and writes both files and `results`. Throws usage for a size that the study
/// has measured.
void predict(Results& results, const std::vector<int>& numbers);

nlohmann::ordered_json json_of(const StoredPrediction& prediction);

/// Nothing if there is no file. Both throw study_damaged.
std::optional<CostModel> read_model(const Study& study);
std::vector<StoredPrediction> read_predictions(const Study& study);

}  // namespace lockstep::scaling
