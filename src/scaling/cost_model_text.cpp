#include <cmath>
#include <string>

#include "base/number_text.h"
#include "lockstep/error.h"
#include "scaling/cost_model.h"

namespace lockstep::scaling {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kFormat = "lockstep scaling model 1";

/// "12.3 us", "1.5 GB/s", or "none measured"
std::string latency_text(double seconds) { return fmt::format("{:.1f} us", 1e6 * seconds); }
std::string bandwidth_text(double byte_seconds) {
  return byte_seconds > 0 ? fmt::format("{:.3g} GB/s", 1e-9 / byte_seconds) : "no limit seen";
}
std::string link_text(const std::string& where, double hop_seconds, double byte_seconds) {
  return fmt::format("{:<16}{} per hop and bucket, {}\n", where, latency_text(hop_seconds),
                     bandwidth_text(byte_seconds));
}

bool has_several(const CostModel& model, bool nodes) {
  return std::ranges::any_of(model.fitted, [&](const CostSize& s) { return nodes ? s.nodes > 1 : s.ranks > s.nodes; });
}

}  // namespace

std::string text_of(const CostModel& model) {
  std::string text = "COST MODEL\nstep = compute + exposed + data\n";
  text += fmt::format("compute         {:.4f} s + {:.4g} ms per {} of a rank{}\n", model.fixed_seconds,
                      1e3 * model.sample_seconds, model.unit.substr(0, model.unit.size() - 1),
                      std::ranges::any_of(model.fitted, [](const CostSize& s) { return s.sharing > 1; })
                          ? ", longer where ranks share cores"
                          : "");
  if (has_several(model, true)) text += link_text("between nodes", model.node_hop_seconds, model.node_byte_seconds);
  if (has_several(model, false)) text += link_text("inside a node", model.rank_hop_seconds, model.rank_byte_seconds);
  if (model.has_exchange_times)
    text += fmt::format("hidden          at most {:.0f} % of the compute, never the last of {} buckets\n",
                        100 * model.hidden_part, model.exchanged.buckets);
  else
    text += "hidden          not known: the latency and the bandwidth are those of the exposed communication\n";
  text += fmt::format("slowest rank    {:.1f} % of the compute, times sqrt(2 ln ranks)\n", 100 * model.straggler_part);
  text += fmt::format("data            {:.4f} s\n", model.data_seconds);
  std::string sizes;
  for (const CostSize& size : model.fitted) sizes += fmt::format("{}{}", sizes.empty() ? "" : ", ", size.ranks);
  return text + fmt::format(
                    "The model was fitted to {} rank{}. At these, it is wrong by {:.1f} % (root mean square).\n"
                    "Predictions assume that {}.\n",
                    sizes, sizes == "1" ? "" : "s", 100 * model.error, machines_text(model));
}

std::string machines_text(const CostModel& model) {
  if (model.cores == 0) return "each rank has cores of its own, since those of the study are not known";
  return fmt::format("{} {}, as in the study",
                     model.is_one_machine ? "all nodes share a machine with" : "each node has",
                     counted(model.cores, "core"));
}

std::string sharing_text(const CostSize& size) {
  return size.sharing > 1 ? fmt::format("{:.3g}", size.sharing) : "at most 1";
}

Json json_of(const CostModel& model) {
  Json fitted = Json::array();
  for (const CostSize& size : model.fitted)
    fitted.push_back({{"ranks", size.ranks},
                      {"nodes", size.nodes},
                      {"samples_per_rank", size.samples_per_rank},
                      {"sharing", size.sharing}});
  return {{"format", kFormat},
          {"unit", model.unit},
          {"units_per_sample", model.units_per_sample},
          {"cores", model.cores},
          {"is_one_machine", model.is_one_machine},
          {"fixed_seconds", model.fixed_seconds},
          {"sample_seconds", model.sample_seconds},
          {"node_hop_seconds", model.node_hop_seconds},
          {"node_byte_seconds", model.node_byte_seconds},
          {"rank_hop_seconds", model.rank_hop_seconds},
          {"rank_byte_seconds", model.rank_byte_seconds},
          {"hidden_part", model.hidden_part},
          {"straggler_part", model.straggler_part},
          {"data_seconds", model.data_seconds},
          {"error", model.error},
          {"spread", model.spread},
          {"has_exchange_times", model.has_exchange_times},
          {"exchanged_bytes", model.exchanged.bytes},
          {"buckets", model.exchanged.buckets},
          {"fitted", fitted}};
}

CostModel cost_model_in(const std::string& text, const std::string& path) {
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  try {
    require(json.is_object() && json.at("format") == kFormat, ErrorCode::study_damaged,
            "{} is not a cost model of `lockstep scaling report --predict`", path);
    CostModel model{.fixed_seconds = json.at("fixed_seconds"),
                    .sample_seconds = json.at("sample_seconds"),
                    .node_hop_seconds = json.at("node_hop_seconds"),
                    .node_byte_seconds = json.at("node_byte_seconds"),
                    .rank_hop_seconds = json.at("rank_hop_seconds"),
                    .rank_byte_seconds = json.at("rank_byte_seconds"),
                    .hidden_part = json.at("hidden_part"),
                    .straggler_part = json.at("straggler_part"),
                    .data_seconds = json.at("data_seconds"),
                    .error = json.at("error"),
                    .spread = json.at("spread"),
                    .has_exchange_times = json.at("has_exchange_times"),
                    .exchanged = {.bytes = json.at("exchanged_bytes"), .buckets = json.at("buckets")},
                    .unit = json.at("unit"),
                    .units_per_sample = json.at("units_per_sample"),
                    .cores = json.value("cores", 0.0),  // older files have neither
                    .is_one_machine = json.value("is_one_machine", false)};
    for (const Json& size : json.at("fitted"))
      model.fitted.push_back({.ranks = size.at("ranks"),
                              .nodes = size.at("nodes"),
                              .samples_per_rank = size.at("samples_per_rank"),
                              .sharing = size.at("sharing")});
    require(!model.fitted.empty() && model.exchanged.buckets > 0 && !model.unit.empty(), ErrorCode::study_damaged,
            "{} was fitted to no size", path);
    return model;
  } catch (const Json::exception& error) {
    fail(ErrorCode::study_damaged, "{} is damaged: {}", path, error.what());
  }
}

}  // namespace lockstep::scaling
