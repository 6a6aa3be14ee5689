// What the charts have in common: SVG elements, the legend, and the frame with the axes.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "page/chart.h"

namespace lockstep::page {

/// `text` for the content of an element of XML or for an attribute in double quotes. Nothing in it can begin or end an
/// element, an attribute, a comment or a character reference. U+FFFD replaces what is not UTF-8, what XML forbids
/// (control characters), and the characters that reverse the direction of the text around them.
std::string escaped(std::string_view text);

/// The width of a text in a sans-serif font, estimated: at least as wide as it is drawn by common fonts.
double text_width(std::string_view text, double font_size);
/// The text, or its beginning with an ellipsis, so that it is not wider than `width`.
std::string shortened(std::string_view text, double font_size, double width);

inline constexpr double kFont = 12, kTitleFont = 15;
inline constexpr double kLine = 18;  // the height of a line of text
inline constexpr std::size_t kSeriesColours = 8;

enum class Anchor { start, middle, end };

/// The elements of a chart, from the top down.
class Drawing {
 public:
  explicit Drawing(double width) : width_(width) {}

  double width() const { return width_; }
  void text(double x, double y, Anchor anchor, const std::string& text, const std::string& classes = "");
  void line(double x1, double y1, double x2, double y2, const std::string& classes);
  /// `hint` is shown where the pointer rests on it.
  void rect(double x, double y, double width, double height, const std::string& classes, const std::string& hint = "");
  void polyline(const std::vector<std::pair<double, double>>& points, const std::string& classes);
  /// A circle, a square, a triangle or a diamond, according to the number of the series.
  void marker(double x, double y, std::size_t series, const std::string& hint = "");

  struct LegendEntry {
    std::string name;
    std::size_t series = 0;
    Style style = Style::line;
    bool is_filled = false;  // a square of the colour, for bars
  };
  /// Entries from left to right in as many lines as they need. Returns the height.
  double legend(const std::vector<LegendEntry>& entries, double top);

  const std::string& elements() const { return elements_; }

 private:
  double width_;
  std::string elements_;
};

/// Converts values to positions.
struct Scale {
  double low = 0, high = 1, begin = 0, end = 1;
  bool is_logarithmic = false;
  double operator()(double value) const;
};

/// The classes of a line of that number.
std::string line_classes(std::size_t series, Style style);
std::string fill_class(std::size_t series);

/// Where the plot begins: to the right of the labels of the y axis.
double left_of_plot(const std::vector<std::string>& labels);
/// A grid line for each tick, and a label where there is room for it.
void draw_y_axis(Drawing& drawing, const Scale& y, const std::vector<double>& ticks,
                 const std::vector<std::string>& labels, double left, double right);
/// Labels below the plot: every n-th, so that none overlaps the next.
void draw_x_labels(Drawing& drawing, const std::vector<std::pair<double, std::string>>& labels, double y,
                   bool has_marks);

/// Each draws from `top` on, and returns the bottom.
double draw(Drawing& drawing, const LineChart& chart, double top);
double draw(Drawing& drawing, const StackedBars& chart, double top);
double draw(Drawing& drawing, const Timeline& chart, double top);

}  // namespace lockstep::page
