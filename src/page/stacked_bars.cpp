// Vertical bars of stacked parts, with the labels of the bars below them.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "page/drawing.h"
#include "page/ticks.h"

namespace lockstep::page {
namespace {

double value_of(const Part& part, std::size_t bar) {
  const double value = bar < part.values.size() ? part.values[bar] : 0;
  return value > 0 && value < 1e100 ? value : 0;  // beyond that, a sum might not be finite
}

double total_of(const StackedBars& chart, std::size_t bar) {
  double total = 0;
  for (const Part& part : chart.parts) total += value_of(part, bar);
  return total;
}

}  // namespace

double draw(Drawing& drawing, const StackedBars& chart, double top) {
  double greatest = 0;
  for (std::size_t bar = 0; bar < chart.bars.size(); ++bar) greatest = std::max(greatest, total_of(chart, bar));
  if (!(greatest > 0)) {
    drawing.text(0, top + 14, Anchor::start, "No values.", "weak");
    return top + kLine;
  }
  std::vector<Drawing::LegendEntry> entries;
  for (std::size_t i = 0; i < chart.parts.size() && chart.parts.size() > 1; ++i)
    entries.push_back({.name = chart.parts[i].name, .series = i, .is_filled = true});
  top += drawing.legend(entries, top);
  drawing.text(0, top + 13, Anchor::start, shortened(chart.y_label, kFont, drawing.width()), "weak");

  constexpr int kMostTicks = 7;
  const double distance = tick_distance(greatest, kMostTicks - 1);
  const double high = std::ceil(greatest / distance - 1e-9) * distance;
  const std::vector<double> ticks = linear_ticks(0, high, kMostTicks);
  const std::vector<std::string> labels = tick_texts(ticks);
  const double left = left_of_plot(labels), right = drawing.width() - 1;
  const double plot_top = top + kLine + 8, bottom = plot_top + std::clamp(0.38 * drawing.width(), 170.0, 240.0);
  const Scale y{0, high, bottom, plot_top};
  draw_y_axis(drawing, y, ticks, labels, left, right);

  const double pitch = (right - left) / static_cast<double>(chart.bars.size());
  const double width = std::min(56.0, pitch * (pitch > 6 ? 0.7 : 0.9));
  std::vector<std::pair<double, std::string>> names;
  for (std::size_t bar = 0; bar < chart.bars.size(); ++bar) {
    const double middle = left + (static_cast<double>(bar) + 0.5) * pitch;
    names.emplace_back(middle, shortened(chart.bars[bar], kFont, std::max(pitch - 10, 60.0)));
    double sum = 0;
    for (std::size_t i = 0; i < chart.parts.size(); ++i) {
      const double value = value_of(chart.parts[i], bar);
      if (value <= 0) continue;
      const std::string hint = fmt::format("{}, {}: {}", chart.bars[bar], chart.parts[i].name, value_text(value));
      drawing.rect(middle - width / 2, y(sum + value), width, y(sum) - y(sum + value), fill_class(i), hint);
      sum += value;
    }
  }
  drawing.line(left, bottom, right, bottom, "axis");
  draw_x_labels(drawing, names, bottom, false);
  drawing.text((left + right) / 2, bottom + 34, Anchor::middle, shortened(chart.x_label, kFont, right - left), "weak");
  return bottom + 40;
}

}  // namespace lockstep::page
