// The report of a study in each of its formats. All of them show the same tables, which report.cpp makes of Results;
// JSON and CSV have full precision.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "scaling/results.h"

namespace lockstep::scaling {

/// In which table a figure is shown; CSV and JSON have all of them.
enum class Shown : std::uint8_t { speedups, figures, times };

/// One figure of each size: how it is named and in which unit it is shown.
struct ReportedFigure {
  std::string key{};    // "exposed_communication_seconds", in JSON and CSV
  std::string title{};  // "waiting for communication, ms"
  Figure SizeResult::*member = nullptr;
  Shown shown = Shown::figures;
  double factor = 1;  // from the unit of the member, which is that of the key, to that of the title
};
/// The figures that the study has measured, without those that its task does not have.
std::vector<ReportedFigure> reported_figures(const Results& results);

struct Table {
  std::vector<std::string> header{};
  std::vector<std::vector<std::string>> rows{};
};
/// Per size: cases, seconds per step or per training, rate, speedup, efficiency, each with its interval.
Table speedup_table(const Results& results);
/// Per size that has any: the means of the figures that this table shows.
Table figure_table(const Results& results, Shown shown);

/// "Baseline (Single GPU)", "Multi-GPU (4 GPUs, 1 node)", "Multi-node (8 GPUs, 2 nodes)"; on CPUs ranks instead of
/// GPUs.
std::string name_of(const SizeResult& size, const Results& results);

/// The predictions for sizes, beside the measurements that exist by now. No rows: nothing was predicted.
Table prediction_table(const Results& results);

/// "strong scaling: a global batch of 64; 60 steps, of which 10 are the warm-up; 3 repeats".
std::string description_of(const Study& study);
/// "Baseline (Single GPU): 362.45 seconds, the mean of 3 runs".
std::string baseline_text(const Results& results);
/// "ranks-0002-repeat-1: not averaged: it ran with ...", and the remarks.
std::vector<std::string> notes_of(const Results& results);
/// Four significant digits, or "-" if it is unknown. Scientific notation is left to numbers below 1e-9 and from 1e7 on:
/// the half-width of a short step's time is "0.00008312".
std::string number_text(double value);

std::string text_report(const Results& results);
std::string markdown_report(const Results& results);
std::string csv_report(const Results& results);
std::string json_report(const Results& results);
std::string latex_report(const Results& results);

}  // namespace lockstep::scaling
