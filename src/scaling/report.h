// The report of a study in each of its formats. All of them show the same tables, which report.cpp makes of Results;
// JSON and CSV have full precision.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "scaling/results.h"

namespace lockstep::scaling {

/// One figure of each size: how it is named and in which unit it is shown.
struct ReportedFigure {
  std::string key{};    // "exposed_communication_seconds", in JSON and CSV
  std::string title{};  // "exposed communication"
  std::string unit{};   // "s per step"; empty: none
  Figure SizeResult::*member = nullptr;
  double factor = 1;  // from the unit of the member to `unit`; keys have the unit of the member
};
/// The figures that the study has measured, without those that its task does not have.
std::vector<ReportedFigure> reported_figures(const Results& results);

struct Table {
  std::vector<std::string> header{};
  std::vector<std::vector<std::string>> rows{};
};
/// Per size: cases, seconds per step, rate, speedup, efficiency, each with its interval.
Table speedup_table(const Results& results);
/// Per figure of each size that has any: mean, half of the interval, least and greatest value.
Table figure_table(const Results& results);

/// The predictions for sizes, beside the measurements that exist by now. No rows: nothing was predicted.
Table prediction_table(const Results& results);

/// "strong scaling: a global batch of 64; 60 steps, of which 10 are the warm-up; 3 repeats".
std::string description_of(const Study& study);
/// "baseline: 0.123 s per step on 1 rank, the mean of 3 cases".
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
