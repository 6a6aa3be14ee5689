// Lines, points with intervals, and an ideal line, over linear or logarithmic axes.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "page/drawing.h"
#include "page/ticks.h"

namespace lockstep::page {
namespace {

constexpr double kMarkerMargin = 6;  // points at the ends of an axis are drawn in full

/// Figures from a damaged file can have any size. Beyond this limit, the difference of two figures might not be finite.
bool can_be_drawn(double value) { return std::isfinite(value) && std::abs(value) < 1e100; }

struct Range {
  double low = INFINITY, high = -INFINITY;
  void add(double value) {
    if (!can_be_drawn(value)) return;
    low = std::min(low, value);
    high = std::max(high, value);
  }
  bool is_empty() const { return !(high >= low); }
};

bool is_drawn(const LineChart& chart, const Point& point) {
  return can_be_drawn(point.x) && can_be_drawn(point.y) && (!chart.x.is_logarithmic || point.x > 0) &&
         (!chart.y.is_logarithmic || point.y > 0);
}

bool has_interval(const Point& point) { return can_be_drawn(point.low) && can_be_drawn(point.high); }

/// Whether the interval has no lower end on a logarithmic axis. It is drawn to the end of the axis.
bool is_open(const LineChart& chart, const Point& point) { return chart.y.is_logarithmic && point.low <= 0; }

/// A range of a single value is widened, so that there is an axis.
void widen(Range& range, const Axis& axis) {
  if (range.high > range.low) return;
  const double by = axis.is_logarithmic ? 0.5 * range.low : range.low != 0 ? 0.1 * std::abs(range.low) : 1;
  range.low -= by;
  range.high += by;
}

struct Ranges {
  Range x, y;
};

Ranges ranges_of(const LineChart& chart) {
  Ranges ranges;
  for (const Series& series : chart.series)
    for (const Point& point : series.points) {
      if (!is_drawn(chart, point)) continue;
      ranges.x.add(point.x);
      ranges.y.add(point.y);
      if (!has_interval(point)) continue;
      // An open interval is drawn to below its point.
      ranges.y.add(is_open(chart, point) ? point.y / 2 : point.low);
      ranges.y.add(point.high);
    }
  if (chart.y.from_zero && !chart.y.is_logarithmic) ranges.y.add(0);
  if (chart.x.from_zero && !chart.x.is_logarithmic) ranges.x.add(0);
  for (const double tick : chart.y.ticks) ranges.y.add(tick);
  return ranges;
}

std::vector<double> ticks_of(const Axis& axis, const Range& range, int max_count) {
  if (!axis.ticks.empty()) return axis.ticks;
  return axis.is_logarithmic ? logarithmic_ticks(range.low, range.high, max_count)
                             : linear_ticks(range.low, range.high, max_count, axis.is_whole);
}

/// A linear axis ends at ticks, so that no point is beyond the last one.
void extend_to_ticks(Range& range, const Axis& axis, int max_count) {
  if (axis.is_logarithmic || !axis.ticks.empty()) return;
  double distance = tick_distance(range.high - range.low, max_count - 1);
  if (axis.is_whole) distance = std::max(1.0, distance);
  range.low = std::floor(range.low / distance + 1e-9) * distance;
  range.high = std::ceil(range.high / distance - 1e-9) * distance;
}

/// The lines of a series between its gaps. Of the points that fall into the same column of two pixels, the first, the
/// lowest, the highest and the last are drawn, which gives the same picture: a run may have logged a million steps.
std::vector<std::vector<std::pair<double, double>>> lines_of(const LineChart& chart, const Series& series,
                                                             const Scale& x, const Scale& y) {
  std::vector<std::vector<std::pair<double, double>>> lines(1);
  std::vector<std::pair<double, double>> column;
  const auto flush = [&] {
    if (column.size() > 4) {
      const auto [low, high] = std::ranges::minmax_element(column, {}, [](const auto& point) { return point.second; });
      const auto first = std::min(low, high), second = std::max(low, high);
      column = {column.front(), *first, *second, column.back()};
    }
    lines.back().insert(lines.back().end(), column.begin(), column.end());
    column.clear();
  };
  for (const Point& point : series.points) {
    if (!is_drawn(chart, point)) {
      flush();
      if (!lines.back().empty()) lines.emplace_back();
      continue;
    }
    const std::pair<double, double> at{x(point.x), y(point.y)};
    if (!column.empty() && std::floor(column.front().first / 2) != std::floor(at.first / 2)) flush();
    column.push_back(at);
  }
  flush();
  if (lines.back().empty()) lines.pop_back();
  return lines;
}

void draw_series(Drawing& drawing, const LineChart& chart, std::size_t index, const Scale& x, const Scale& y) {
  const Series& series = chart.series[index];
  if (series.style != Style::markers)
    for (const auto& line : lines_of(chart, series, x, y)) {
      if (line.size() > 1)
        drawing.polyline(line, line_classes(index, series.style));
      else if (series.style == Style::line)
        drawing.marker(line[0].first, line[0].second, index);  // a line of one point could not be seen
    }
  const std::string interval = fmt::format("s{} interval", index % kSeriesColours);
  for (const Point& point : series.points) {
    if (!is_drawn(chart, point)) continue;
    const double at_x = x(point.x);
    if (has_interval(point)) {
      const bool is_cut = is_open(chart, point);
      drawing.line(at_x, is_cut ? y.begin : y(point.low), at_x, y(point.high), interval);
      drawing.line(at_x - 4, y(point.high), at_x + 4, y(point.high), interval);
      if (!is_cut) drawing.line(at_x - 4, y(point.low), at_x + 4, y(point.low), interval);
    }
    if (series.style != Style::markers && series.style != Style::line_with_markers) continue;
    std::string hint = fmt::format("{}: {} at {}", series.name, value_text(point.y), value_text(point.x, 6));
    if (has_interval(point)) hint += fmt::format(" ({} to {})", value_text(point.low), value_text(point.high));
    drawing.marker(at_x, y(point.y), index, hint);
  }
}

}  // namespace

double draw(Drawing& drawing, const LineChart& chart, double top) {
  Ranges ranges = ranges_of(chart);
  if (ranges.x.is_empty()) {
    drawing.text(0, top + 14, Anchor::start, "No values.", "weak");
    return top + kLine;
  }
  std::vector<Drawing::LegendEntry> entries;
  for (std::size_t i = 0; i < chart.series.size() && chart.series.size() > 1; ++i)
    entries.push_back({.name = chart.series[i].name, .series = i, .style = chart.series[i].style});
  top += drawing.legend(entries, top);
  drawing.text(0, top + 13, Anchor::start, shortened(chart.y.label, kFont, drawing.width()), "weak");

  constexpr int kMostTicks = 7;
  const double height = std::clamp(0.42 * drawing.width(), 180.0, 260.0);
  widen(ranges.x, chart.x);
  widen(ranges.y, chart.y);
  extend_to_ticks(ranges.y, chart.y, kMostTicks);
  const std::vector<double> y_ticks = ticks_of(chart.y, ranges.y, kMostTicks);
  const std::vector<std::string> y_labels = tick_texts(y_ticks);
  const double left = left_of_plot(y_labels), right = drawing.width() - 1;
  const double plot_top = top + kLine + 8, bottom = plot_top + height;
  const Scale y{ranges.y.low, ranges.y.high, bottom, plot_top, chart.y.is_logarithmic};
  const Scale x{ranges.x.low, ranges.x.high, left + kMarkerMargin, right - kMarkerMargin, chart.x.is_logarithmic};
  draw_y_axis(drawing, y, y_ticks, y_labels, left, right);
  drawing.line(left, bottom, right, bottom, "axis");

  const std::vector<double> x_ticks = ticks_of(chart.x, ranges.x, static_cast<int>((right - left) / 60) + 1);
  const std::vector<std::string> x_texts = tick_texts(x_ticks);
  std::vector<std::pair<double, std::string>> x_labels;
  for (std::size_t i = 0; i < x_ticks.size(); ++i)
    if (x_ticks[i] >= ranges.x.low && x_ticks[i] <= ranges.x.high) x_labels.emplace_back(x(x_ticks[i]), x_texts[i]);
  draw_x_labels(drawing, x_labels, bottom, true);
  const std::string x_label = shortened(chart.x.label, kFont, right - left);
  drawing.text((left + right) / 2, bottom + 34, Anchor::middle, x_label, "weak");

  for (std::size_t i = 0; i < chart.series.size(); ++i) draw_series(drawing, chart, i, x, y);
  return bottom + 40;
}

bool has_data(const Chart& chart) {
  if (const auto* lines = std::get_if<LineChart>(&chart)) return !ranges_of(*lines).x.is_empty();
  if (const auto* bars = std::get_if<StackedBars>(&chart))
    return !bars->bars.empty() && std::ranges::any_of(bars->parts, [](const Part& part) {
      return std::ranges::any_of(part.values, [](double v) { return std::isfinite(v) && v > 0; });
    });
  const auto& rows = std::get<Timeline>(chart).rows;
  return std::ranges::any_of(rows, [](const TimelineRow& row) { return !row.spans.empty(); });
}

}  // namespace lockstep::page
