#include "scaling/cost_model.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <optional>
#include <random>
#include <set>
#include <string>

#include "base/numbers.h"
#include "lockstep/error.h"
#include "scaling/measurement.h"

namespace lockstep::scaling {
namespace {

constexpr int kResamples = 100;
constexpr double kTwoSided = 1.96;  // two-sided 95 % quantile of the normal distribution

/// What each participant sends in the exchanges of a step: hops and bytes between nodes, and inside a node.
struct Sent {
  double node_hops, node_bytes, rank_hops, rank_bytes;
};

Sent sent(const CostSize& size, const Exchanged& exchanged) {
  const auto hops = [&](double n) { return 2 * (n - 1) * exchanged.buckets; };
  const auto bytes = [&](double n) { return 2 * (n - 1) / n * exchanged.bytes; };
  const double nodes = size.nodes, on_node = static_cast<double>(size.ranks) / size.nodes;
  return {hops(nodes), bytes(nodes), size.sharing * hops(on_node), size.sharing * bytes(on_node)};
}

/// How far the slowest of n ranks is above the mean, in standard deviations.
double greatest_of(int ranks) { return ranks > 1 ? std::sqrt(2 * std::log(ranks)) : 0; }

double compute_seconds(const CostModel& model, const CostSize& size) {
  return size.sharing * (model.fixed_seconds + model.sample_seconds * size.samples_per_rank);
}

/// The exposed time of exchanges, without the wait for the slowest rank.
double unhidden_seconds(const CostModel& model, const CostSize& size, double hidden_part) {
  const double exchange = model.exchange_seconds(size);
  const double last_bucket = exchange / std::max(model.exchanged.buckets, 1);
  return std::max(last_bucket, exchange - hidden_part * compute_seconds(model, size));
}

/// Solves the normal equations of the chosen columns by elimination; no value if they depend on each other.
std::optional<std::vector<double>> solve(std::vector<double> matrix, std::vector<double> right) {
  const std::size_t n = right.size();
  const auto at = [&](std::size_t i, std::size_t j) -> double& { return matrix[i * n + j]; };
  for (std::size_t k = 0; k < n; ++k) {
    std::size_t pivot = k;
    for (std::size_t i = k + 1; i < n; ++i)
      if (std::abs(at(i, k)) > std::abs(at(pivot, k))) pivot = i;
    if (std::abs(at(pivot, k)) <= 1e-12) return std::nullopt;
    for (std::size_t j = 0; j < n; ++j) std::swap(at(k, j), at(pivot, j));
    std::swap(right[k], right[pivot]);
    for (std::size_t i = 0; i < n; ++i) {
      if (i == k) continue;
      const double factor = at(i, k) / at(k, k);
      for (std::size_t j = k; j < n; ++j) at(i, j) -= factor * at(k, j);
      right[i] -= factor * right[k];
    }
  }
  for (std::size_t k = 0; k < n; ++k) right[k] /= at(k, k);
  return right;
}

/// A linear system for least squares. The error of each row is relative to its right-hand side.
struct RelativeSystem {
  std::size_t n_columns;
  std::vector<double> rows{}, right{};
  void add(std::initializer_list<double> row, double value) {
    if (!(value > 0)) return;
    for (const double x : row) rows.push_back(x / value);
    right.push_back(1);
  }
  std::vector<double> solve() const { return nonnegative_least_squares(rows, right, n_columns); }
};

void fit_compute(CostModel& model, std::span<const CostPoint> points) {
  const auto differs = [&](const CostPoint& p) { return p.size.samples_per_rank != points[0].size.samples_per_rank; };
  const bool has_slope = std::ranges::any_of(points, differs);  // otherwise, all time belongs to the samples
  RelativeSystem system{2};
  for (const CostPoint& p : points)
    system.add({has_slope ? p.size.sharing : 0, p.size.sharing * p.size.samples_per_rank},
               p.step_seconds - p.exposed_seconds - p.data_seconds);
  const auto x = system.solve();
  model.fixed_seconds = x[0];
  model.sample_seconds = x[1];
}

/// `observed` is the time of the exchanges for each point.
void fit_exchange(CostModel& model, std::span<const CostPoint> points, std::span<const double> observed) {
  RelativeSystem system{4};
  for (std::size_t i = 0; i < points.size(); ++i) {
    const Sent s = sent(points[i].size, model.exchanged);
    if (points[i].size.ranks > 1) system.add({s.node_hops, s.node_bytes, s.rank_hops, s.rank_bytes}, observed[i]);
  }
  const auto x = system.solve();
  model.node_hop_seconds = x[0];
  model.node_byte_seconds = x[1];
  model.rank_hop_seconds = x[2];
  model.rank_byte_seconds = x[3];
}

/// Returns the best straggler_part for this hidden part, and the resulting sum of the squared relative errors of the
/// steps.
std::array<double, 2> straggler_part_for(const CostModel& model, std::span<const CostPoint> points, double hidden) {
  double above = 0, below = 0;
  const auto parts = [&](const CostPoint& p) {
    const double weight = greatest_of(p.size.ranks) * compute_seconds(model, p.size) / p.step_seconds;
    const double left = (p.exposed_seconds - unhidden_seconds(model, p.size, hidden)) / p.step_seconds;
    return std::array{weight, left};
  };
  for (const CostPoint& p : points) {
    const auto [weight, left] = parts(p);
    above += weight * left;
    below += weight * weight;
  }
  const double straggler = below > 0 ? std::max(0.0, above / below) : 0;
  double squares = 0;
  for (const CostPoint& p : points) {
    const auto [weight, left] = parts(p);
    squares += std::pow(left - straggler * weight, 2);
  }
  return {straggler, squares};
}

void fit_exposed(CostModel& model, std::span<const CostPoint> points) {
  double best = std::numeric_limits<double>::infinity();
  for (int percent = 0; percent <= 100; ++percent) {
    const auto [straggler, squares] = straggler_part_for(model, points, percent / 100.0);
    if (squares >= best * (1 - 1e-9)) continue;
    best = squares;
    model.hidden_part = percent / 100.0;
    model.straggler_part = straggler;
  }
}

CostModel fit(std::span<const CostPoint> points, const Exchanged& exchanged) {
  CostModel model{.exchanged = exchanged};
  const auto is_measured = [](const CostPoint& p) { return p.size.ranks == 1 || std::isfinite(p.exchange_seconds); };
  model.has_exchange_times = std::ranges::all_of(points, is_measured);
  for (const CostPoint& p : points) model.data_seconds += p.data_seconds / static_cast<double>(points.size());
  fit_compute(model, points);
  std::vector<double> observed;
  for (const CostPoint& p : points)
    observed.push_back(model.has_exchange_times ? p.exchange_seconds : p.exposed_seconds);
  fit_exchange(model, points, observed);
  if (model.has_exchange_times) fit_exposed(model, points);
  for (const CostPoint& p : points)
    model.error += std::pow(model.predict(p.size).step_seconds() / p.step_seconds - 1, 2);
  model.error = std::sqrt(model.error / static_cast<double>(points.size()));
  return model;
}

auto order(const CostSize& size) { return std::pair(size.ranks, size.nodes); }

/// How much a prediction for the largest size changes if the repeats are resampled.
double spread_of_resamples(std::span<const CostPoint> points, const CostModel& model) {
  std::map<std::pair<int, int>, std::vector<CostPoint>> of_size;
  for (const CostPoint& p : points) of_size[order(p.size)].push_back(p);
  std::minstd_rand random(1);  // the same study gives the same interval
  double sum = 0, squares = 0;
  for (int i = 0; i < kResamples; ++i) {
    std::vector<CostPoint> drawn;
    for (const auto& [size, repeats] : of_size)
      for (std::size_t r = 0; r < repeats.size(); ++r) drawn.push_back(repeats[random() % repeats.size()]);
    const double seconds = fit(drawn, model.exchanged).predict(model.fitted.back()).step_seconds();
    sum += seconds;
    squares += seconds * seconds;
  }
  const double mean = sum / kResamples;
  return std::sqrt(std::max(0.0, squares / kResamples - mean * mean)) / mean;
}

}  // namespace

std::vector<double> nonnegative_least_squares(std::span<const double> rows, std::span<const double> right,
                                              std::size_t n_columns) {
  std::vector<double> best(n_columns, 0.0), scale(n_columns, 0.0);
  const std::size_t n_rows = right.size();
  for (std::size_t c = 0; c < n_columns; ++c)  // columns get equal length, since seconds per byte and per hop differ
    for (std::size_t r = 0; r < n_rows; ++r) scale[c] = std::hypot(scale[c], rows[r * n_columns + c]);
  double least = std::numeric_limits<double>::infinity();
  for (unsigned set = 0; set < 1U << n_columns; ++set) {
    std::vector<std::size_t> columns;
    for (std::size_t c = 0; c < n_columns; ++c)
      if ((set >> c & 1U) != 0 && scale[c] > 0) columns.push_back(c);
    const auto entry = [&](std::size_t r, std::size_t c) { return rows[r * n_columns + c] / scale[c]; };
    std::vector<double> matrix, image;
    for (const std::size_t a : columns) {
      for (const std::size_t b : columns) {
        double product = 0;
        for (std::size_t r = 0; r < n_rows; ++r) product += entry(r, a) * entry(r, b);
        matrix.push_back(product);
      }
      double product = 0;
      for (std::size_t r = 0; r < n_rows; ++r) product += entry(r, a) * right[r];
      image.push_back(product);
    }
    const auto solution = solve(std::move(matrix), std::move(image));
    if (!solution || std::ranges::any_of(*solution, [](double x) { return x < 0; })) continue;
    double squares = 0;
    for (std::size_t r = 0; r < n_rows; ++r) {
      double left = right[r];
      for (std::size_t i = 0; i < columns.size(); ++i) left -= (*solution)[i] * entry(r, columns[i]);
      squares += left * left;
    }
    if (squares >= least * (1 - 1e-9)) continue;  // the set with the fewest columns wins
    least = squares;
    std::ranges::fill(best, 0.0);
    for (std::size_t i = 0; i < columns.size(); ++i) best[columns[i]] = (*solution)[i] / scale[columns[i]];
  }
  return best;
}

CostSize CostModel::size(int ranks, int nodes, double global_batch) const {
  const int on_machine = is_one_machine ? ranks : (ranks + nodes - 1) / nodes;
  return {.ranks = ranks,
          .nodes = nodes,
          .samples_per_rank = units_per_sample * global_batch / ranks,
          .sharing = Machine{.ranks = on_machine, .cores = cores}.sharing()};
}

double CostModel::exchange_seconds(const CostSize& size) const {
  const Sent s = sent(size, exchanged);
  return node_hop_seconds * s.node_hops + node_byte_seconds * s.node_bytes + rank_hop_seconds * s.rank_hops +
         rank_byte_seconds * s.rank_bytes;
}

Prediction CostModel::predict(const CostSize& size) const {
  const double compute = compute_seconds(*this, size);
  const double exposed = has_exchange_times ? unhidden_seconds(*this, size, hidden_part) : exchange_seconds(size);
  Prediction out{.size = size,
                 .compute_seconds = compute,
                 .exposed_seconds = exposed + straggler_part * greatest_of(size.ranks) * compute,
                 .data_seconds = data_seconds};
  const double half_width = kTwoSided * std::hypot(error, spread) * out.step_seconds();
  out.low = std::max(0.0, out.step_seconds() - half_width);
  out.high = out.step_seconds() + half_width;
  return out;
}

CostModel fit_cost_model(std::span<const CostPoint> points, const Exchanged& exchanged, const std::string& unit) {
  std::set<int> ranks;
  for (const CostPoint& p : points) ranks.insert(p.size.ranks);
  require(ranks.size() >= 2, ErrorCode::usage,
          "the cost model needs cases of at least two sizes, and {} can be averaged: run the study with more sizes",
          ranks.empty() ? std::string("none") : fmt::format("only {} of {} ranks", points.size(), *ranks.begin()));
  CostModel model = fit(points, exchanged);
  model.unit = unit;
  for (const CostPoint& p : points)
    if (std::ranges::none_of(model.fitted, [&](const CostSize& s) { return order(s) == order(p.size); }))
      model.fitted.push_back(p.size);
  std::ranges::sort(model.fitted, {}, order);
  model.spread = spread_of_resamples(points, model);
  return model;
}

namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kFormat = "lockstep scaling model 1";
/// The fitted figures.
constexpr std::pair<const char*, double CostModel::*> kFigures[] = {
    {"fixed_seconds", &CostModel::fixed_seconds},
    {"sample_seconds", &CostModel::sample_seconds},
    {"node_hop_seconds", &CostModel::node_hop_seconds},
    {"node_byte_seconds", &CostModel::node_byte_seconds},
    {"rank_hop_seconds", &CostModel::rank_hop_seconds},
    {"rank_byte_seconds", &CostModel::rank_byte_seconds},
    {"hidden_part", &CostModel::hidden_part},
    {"straggler_part", &CostModel::straggler_part},
    {"data_seconds", &CostModel::data_seconds},
    {"error", &CostModel::error},
    {"spread", &CostModel::spread}};

std::string link_text(const char* where, double hop_seconds, double byte_seconds) {
  return fmt::format("{:<16}{:.1f} us per hop and bucket, {}\n", where, 1e6 * hop_seconds,
                     byte_seconds > 0 ? fmt::format("{:.3g} GB/s", 1e-9 / byte_seconds) : "no limit seen");
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
  std::vector<int> sizes;
  for (const CostSize& size : model.fitted) sizes.push_back(size.ranks);
  return text + fmt::format(
                    "The model was fitted to {} rank{}. At these, it is wrong by {:.1f} % (root mean square).\n"
                    "Predictions assume that {}.\n",
                    fmt::join(sizes, ", "), sizes == std::vector{1} ? "" : "s", 100 * model.error,
                    machines_text(model));
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
  Json object{{"format", kFormat},
              {"unit", model.unit},
              {"units_per_sample", model.units_per_sample},
              {"cores", model.cores},
              {"is_one_machine", model.is_one_machine}};
  for (const auto& [key, member] : kFigures) object[key] = model.*member;
  object.update({{"has_exchange_times", model.has_exchange_times},
                 {"exchanged_bytes", model.exchanged.bytes},
                 {"buckets", model.exchanged.buckets},
                 {"fitted", model.fitted}});
  return object;
}

CostModel cost_model_in(const std::string& text, const std::string& path) {
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  try {
    require(json.is_object() && json.at("format") == kFormat, ErrorCode::study_damaged,
            "{} is not a cost model of `lockstep scaling report --predict`", path);
    CostModel model{.has_exchange_times = json.at("has_exchange_times"),
                    .exchanged = {.bytes = json.at("exchanged_bytes"), .buckets = json.at("buckets")},
                    .unit = json.at("unit"),
                    .units_per_sample = json.at("units_per_sample"),
                    .cores = json.value("cores", 0.0),  // older files have neither
                    .is_one_machine = json.value("is_one_machine", false)};
    for (const auto& [key, member] : kFigures) model.*member = json.at(key);
    json.at("fitted").get_to(model.fitted);
    require(!model.fitted.empty() && model.exchanged.buckets > 0 && !model.unit.empty(), ErrorCode::study_damaged,
            "{} was fitted to no size", path);
    return model;
  } catch (const Json::exception& error) {
    fail(ErrorCode::study_damaged, "{} is damaged: {}", path, error.what());
  }
}

}  // namespace lockstep::scaling
