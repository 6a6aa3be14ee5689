// Rows of spans over a common time: the name of each row is above it, so that the spans have the whole width even on a
// phone. A span shows its name if there is room for it, and always when the pointer rests on it.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "page/drawing.h"
#include "page/ticks.h"

namespace lockstep::page {
namespace {

constexpr double kSpanHeight = 17, kLeastWidth = 0.4;

/// Draws the spans of a row from `top` on, and returns the bottom.
double draw_row(Drawing& drawing, const Timeline& chart, const TimelineRow& row, const Scale& x, double top) {
  drawing.text(0, top + 12, Anchor::start, shortened(row.name, kFont, drawing.width()), "weak");
  top += kLine;
  int deepest = 0;
  for (const Span& span : row.spans) {
    if (!std::isfinite(span.begin) || !std::isfinite(span.end)) continue;
    const double begin = x(std::clamp(span.begin, 0.0, chart.length));
    const double width = x(std::clamp(span.end, 0.0, chart.length)) - begin;
    deepest = std::max(deepest, span.depth);
    if (width < kLeastWidth) continue;
    const double y = top + span.depth * kSpanHeight;
    const std::string kind = span.kind < chart.kinds.size() ? chart.kinds[span.kind] : "";
    const std::string hint = fmt::format("{} ({}), {}", span.name, kind, value_text(span.end - span.begin));
    drawing.rect(begin, y, width, kSpanHeight - 1, fill_class(span.kind), hint);
    if (text_width(span.name, kFont) + 6 < width) drawing.text(begin + 3, y + 12, Anchor::start, span.name, "on");
  }
  return top + (deepest + 1) * kSpanHeight + 6;
}

}  // namespace

double draw(Drawing& drawing, const Timeline& chart, double top) {
  std::vector<Drawing::LegendEntry> entries;
  for (std::size_t kind = 0; kind < chart.kinds.size(); ++kind) {
    const auto is_of_kind = [&](const Span& span) { return span.kind == kind; };
    if (std::ranges::any_of(chart.rows, [&](const auto& row) { return std::ranges::any_of(row.spans, is_of_kind); }))
      entries.push_back({.name = chart.kinds[kind], .series = kind, .is_filled = true});
  }
  top += drawing.legend(entries, top) + 4;
  const Scale x{0, std::max(chart.length, 1e-12), 0, drawing.width() - 1};
  for (const TimelineRow& row : chart.rows) top = draw_row(drawing, chart, row, x, top);

  drawing.line(x.begin, top, x.end, top, "axis");
  const std::vector<double> ticks = linear_ticks(0, x.high, static_cast<int>(drawing.width() / 60) + 1);
  const std::vector<std::string> texts = tick_texts(ticks);
  std::vector<std::pair<double, std::string>> labels;
  for (std::size_t i = 0; i < ticks.size(); ++i) labels.emplace_back(x(ticks[i]), texts[i]);
  draw_x_labels(drawing, labels, top, true);
  drawing.text(drawing.width() / 2, top + 34, Anchor::middle, shortened(chart.x_label, kFont, drawing.width()), "weak");
  return top + 40;
}

}  // namespace lockstep::page
