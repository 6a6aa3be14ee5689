// The report for programs: CSV with one line per size and figure, and JSON, which also has the cases. Both have the
// units of the keys and full precision. An unknown number is empty in CSV, and null in JSON.
#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "scaling/predictions.h"
#include "scaling/report.h"

namespace lockstep::scaling {
namespace {

using Json = nlohmann::ordered_json;

std::string exact(double value) { return std::isfinite(value) ? fmt::format("{}", value) : ""; }

Json json_of(const Figure& figure) {
  return {{"n", figure.n},
          {"mean", figure.mean},
          {"interval_low", figure.low()},
          {"interval_high", figure.high()},
          {"minimum", figure.minimum},
          {"maximum", figure.maximum},
          {"deviation", figure.deviation}};
}

Json json_of(const CaseResult& result) {
  Json rejections = Json::array(), hosts = Json::array();
  for (const Rejection& rejection : result.rejections)
    rejections.push_back({{"reason", name_of(rejection.reason)}, {"text", rejection.text}});
  Json object{{"name", result.of.name},         {"ranks", result.of.ranks},
              {"nodes", result.of.nodes},       {"repeat", result.of.repeat},
              {"finished", !!result.measured},  {"averaged", result.is_averaged},
              {"rejections", rejections},       {"step_seconds", result.step_seconds},
              {"units_per_second", result.rate}};
  if (!result.measured) return object;
  for (const Host& host : result.measured->hosts)
    hosts.push_back(
        {{"name", host.name}, {"ranks", host.ranks}, {"cores", host.cores}, {"busy_cores_of_others", host.busy}});
  object["seconds"] = result.measured->seconds;
  object["build"] = result.measured->build;
  object["hosts"] = hosts;
  object["other_jobs"] = result.measured->other_jobs;
  return object;
}

}  // namespace

std::string csv_report(const Results& results) {
  std::string text = "ranks,nodes,cases,averaged,figure,mean,interval_low,interval_high,minimum,maximum,deviation\n";
  for (const SizeResult& size : results.sizes)
    for (const ReportedFigure& reported : reported_figures(results)) {
      const Figure& figure = size.*reported.member;
      text += fmt::format("{},{},{},{},{},{},{},{},{},{},{}\n", size.ranks, size.nodes, size.n_cases, size.n_averaged,
                          reported.key, exact(figure.mean), exact(figure.low()), exact(figure.high()),
                          exact(figure.minimum), exact(figure.maximum), exact(figure.deviation));
    }
  for (const StoredPrediction& stored : results.predictions) {
    const Prediction& p = stored.prediction;
    text += fmt::format("{},{},0,0,predicted_step_seconds,{},{},{},,,\n", p.size.ranks, p.size.nodes,
                        exact(p.step_seconds()), exact(p.low), exact(p.high));
  }
  return text;
}

std::string json_report(const Results& results) {
  const Study& study = results.study;
  Json object{{"directory", study.directory}};
  object.update(settings_json(study));
  object["unit"] = results.unit.empty() ? Json() : Json(results.unit);
  object["baseline"] = {{"ranks", results.baseline().ranks},
                        {"nodes", results.baseline().nodes},
                        {"step_seconds", results.baseline().step_seconds.mean}};
  object["sizes"] = Json::array();
  object["cases"] = Json::array();
  object["remarks"] = results.remarks;
  for (const SizeResult& size : results.sizes) {
    Json figures = Json::object();
    for (const ReportedFigure& reported : reported_figures(results))
      figures[reported.key] = json_of(size.*reported.member);
    object["sizes"].push_back({{"ranks", size.ranks},
                               {"nodes", size.nodes},
                               {"cases", size.n_cases},
                               {"averaged", size.n_averaged},
                               {"rejected", size.n_rejected},
                               {"figures", figures}});
  }
  for (const CaseResult& each : results.cases) object["cases"].push_back(json_of(each));
  object["model"] = results.model ? scaling::json_of(*results.model) : Json();
  object["predictions"] = Json::array();
  for (const StoredPrediction& stored : results.predictions) object["predictions"].push_back(scaling::json_of(stored));
  return object.dump(2, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace) + "\n";
}

}  // namespace lockstep::scaling
