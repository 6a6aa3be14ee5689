// Charts as SVG: lines, stacked bars, and a timeline. A chart is described once, and drawn in any width: for a wide
// screen, for a phone, or as a file of its own.
//
//   LineChart chart{.title = "Speedup", .x = {.label = "ranks"}, .y = {.label = "speedup", .from_zero = true}};
//   chart.series.push_back({.name = "measured", .points = points, .style = Style::line_with_markers});
//   chart.series.push_back({.name = "ideal", .points = {{1, 1}, {8, 8}}, .style = Style::reference});
//   page.add(chart);                                 // page/page.h: both widths, colours of the page
//   write(standalone_svg(chart));                    // with its own colours
//
// All sizes are in units of the viewBox, which are pixels if the chart is shown at its own width. Values that are not
// finite are left out, and interrupt a line. Texts never overlap: legends have lines of their own, and labels of an
// axis are thinned until they fit. Series differ in colour and also in dashes or markers, and the colours are those of
// Okabe and Ito (https://jfly.uni-koeln.de/color), which people with any type of colour vision can tell apart.
#pragma once

#include <cmath>
#include <string>
#include <variant>
#include <vector>

namespace lockstep::page {

struct Axis {
  std::string label;  // with its unit: "time of a step (ms)"
  bool is_logarithmic = false;
  bool from_zero = false;          // of a linear axis
  bool is_whole = false;           // ticks are whole numbers
  std::vector<double> ticks = {};  // empty: chosen by the range
};

/// `low` and `high`: the ends of an interval, such as a confidence interval; no interval if they are not finite.
struct Point {
  double x = 0, y = 0;
  double low = NAN, high = NAN;
};

enum class Style { line, markers, line_with_markers, reference };  // reference: dashed and grey, for an ideal line

struct Series {
  std::string name;
  std::vector<Point> points = {};  // in ascending order of x
  Style style = Style::line;
};

struct LineChart {
  std::string title, description = {};
  Axis x = {}, y = {};
  std::vector<Series> series = {};
};

struct Part {
  std::string name;
  std::vector<double> values = {};  // one per bar, not negative; in the unit of the axis
};

/// One bar for each label, from the bottom up in the order of the parts.
struct StackedBars {
  std::string title, description = {};
  std::string x_label = {}, y_label = {};
  std::vector<std::string> bars = {};
  std::vector<Part> parts = {};
};

struct Span {
  double begin = 0, end = 0;  // in the unit of the timeline
  int depth = 0;              // spans within a span are drawn below it
  std::size_t kind = 0;       // index into Timeline::kinds
  std::string name = {};
};

struct TimelineRow {
  std::string name;
  std::vector<Span> spans = {};
};

struct Timeline {
  std::string title, description = {};
  std::string x_label = {};
  double length = 0;  // of the axis, which begins at 0
  std::vector<std::string> kinds = {};
  std::vector<TimelineRow> rows = {};
};

using Chart = std::variant<LineChart, StackedBars, Timeline>;

const std::string& title_of(const Chart& chart);
const std::string& description_of(const Chart& chart);
/// Whether there is anything to draw.
bool has_data(const Chart& chart);

/// An <svg> element for a page whose style sheet contains chart_style(Colours::of_page). `id` is unique in the page.
/// The title is not drawn, but is there for screen readers.
std::string inline_svg(const Chart& chart, double width, const std::string& id);
/// An SVG file with the title, a white background and the colours for print.
std::string standalone_svg(const Chart& chart, double width = 720);

/// CSS rules of the classes that charts use. `of_page`: with the custom properties --series-0 and so on, which
/// colour_properties() sets; `of_print`: with the colours themselves, since not every SVG program supports custom
/// properties.
enum class Colours { of_page, of_print };
std::string chart_style(Colours colours);
enum class Theme { light, dark };
std::string colour_properties(Theme theme);

}  // namespace lockstep::page
