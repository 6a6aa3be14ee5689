#include "page/drawing.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>

#include "base/utf8.h"

namespace lockstep::page {
namespace {

struct Palette {
  std::array<const char*, kSeriesColours> series;
  const char *text, *weak_text, *grid, *axis, *ground;
};

// The colours of Okabe and Ito. Their yellow is darker here, because yellow lines would be invisible on white. On a
// dark background, all colours are lighter.
constexpr Palette kLight{{"#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#a89a00", "#777777"},
                         "#1c2024",
                         "#565d64",
                         "#e2e5e8",
                         "#8b9299",
                         "#ffffff"};
constexpr Palette kDark{{"#4da8dd", "#ff8a4a", "#2fc79a", "#e39cc6", "#f2b84b", "#a5dbf8", "#f0e442", "#a0a0a0"},
                        "#e8eaed",
                        "#a9b0b7",
                        "#33393f",
                        "#757d85",
                        "#14181c"};

std::string number(double value) {
  std::string text = fmt::format("{:.1f}", value);
  if (text.ends_with(".0")) text.resize(text.size() - 2);
  return text == "-0" ? "0" : text;
}

std::string list_of(const std::vector<std::pair<double, double>>& points) {
  std::string list;
  for (const auto& [x, y] : points) list += fmt::format("{}{},{}", list.empty() ? "" : " ", number(x), number(y));
  return list;
}

std::string hint_element(const std::string& hint) { return hint.empty() ? "" : "<title>" + escaped(hint) + "</title>"; }

}  // namespace

std::string fill_class(std::size_t series) { return fmt::format("f{}", series % kSeriesColours); }

std::string line_classes(std::size_t series, Style style) {
  if (style == Style::reference) return "reference";
  return fmt::format("l s{} d{}", series % kSeriesColours, series % 4);
}

double Scale::operator()(double value) const {
  const auto at = [&](double v) { return is_logarithmic ? std::log10(v) : v; };
  const double length = at(high) - at(low);
  return length > 0 ? begin + (at(value) - at(low)) / length * (end - begin) : (begin + end) / 2;
}

void Drawing::text(double x, double y, Anchor anchor, const std::string& text, const std::string& classes) {
  constexpr const char* kAnchors[] = {"", " text-anchor=\"middle\"", " text-anchor=\"end\""};
  elements_ += fmt::format("<text x=\"{}\" y=\"{}\"{}{}>{}</text>\n", number(x), number(y),
                           kAnchors[static_cast<std::size_t>(anchor)],
                           classes.empty() ? "" : fmt::format(" class=\"{}\"", classes), escaped(text));
}

void Drawing::line(double x1, double y1, double x2, double y2, const std::string& classes) {
  elements_ += fmt::format("<line x1=\"{}\" y1=\"{}\" x2=\"{}\" y2=\"{}\" class=\"{}\"/>\n", number(x1), number(y1),
                           number(x2), number(y2), classes);
}

void Drawing::rect(double x, double y, double width, double height, const std::string& classes,
                   const std::string& hint) {
  elements_ +=
      fmt::format("<rect x=\"{:.2f}\" y=\"{:.2f}\" width=\"{:.2f}\" height=\"{:.2f}\" class=\"{}\">{}</rect>\n", x, y,
                  width, height, classes, hint_element(hint));
}

void Drawing::polyline(const std::vector<std::pair<double, double>>& points, const std::string& classes) {
  elements_ += fmt::format("<polyline class=\"{}\" points=\"{}\"/>\n", classes, list_of(points));
}

void Drawing::marker(double x, double y, std::size_t series, const std::string& hint) {
  constexpr double r = 4;
  const std::string end = fmt::format(" class=\"{} m\">{}", fill_class(series), hint_element(hint));
  if (series % 4 == 0) {
    elements_ += fmt::format("<circle cx=\"{}\" cy=\"{}\" r=\"{}\"{}</circle>\n", number(x), number(y), r, end);
    return;
  }
  std::vector<std::pair<double, double>> corners{{-1.1 * r, r}, {0, -1.1 * r}, {1.1 * r, r}};
  if (series % 4 == 1) corners = {{-r, 0}, {0, -1.25 * r}, {r, 0}, {0, 1.25 * r}};
  if (series % 4 == 2) corners = {{-r, -r}, {r, -r}, {r, r}, {-r, r}};
  for (auto& [corner_x, corner_y] : corners) {
    corner_x += x;
    corner_y += y;
  }
  elements_ += fmt::format("<polygon points=\"{}\"{}</polygon>\n", list_of(corners), end);
}

double Drawing::legend(const std::vector<LegendEntry>& entries, double top) {
  constexpr double kSymbol = 22, kGap = 16;
  double x = 0, y = top;
  for (const LegendEntry& entry : entries) {
    const std::string name = shortened(entry.name, kFont, width_ - kSymbol - 4);
    const double needed = kSymbol + text_width(name, kFont);
    if (x > 0 && x + needed > width_) {
      x = 0;
      y += kLine;
    }
    const double middle = y + 9;
    if (entry.is_filled) {
      rect(x + 3, middle - 5.5, 12, 11, fill_class(entry.series));
    } else {
      if (entry.style != Style::markers) line(x, middle, x + 18, middle, line_classes(entry.series, entry.style));
      if (entry.style == Style::markers || entry.style == Style::line_with_markers) marker(x + 9, middle, entry.series);
    }
    text(x + kSymbol, middle + 4, Anchor::start, name);
    x += needed + kGap;
  }
  return entries.empty() ? 0 : y - top + kLine + 6;
}

double left_of_plot(const std::vector<std::string>& labels) {
  double width = 0;
  for (const std::string& label : labels) width = std::max(width, text_width(label, kFont));
  return width + 8;
}

void draw_y_axis(Drawing& drawing, const Scale& y, const std::vector<double>& ticks,
                 const std::vector<std::string>& labels, double left, double right) {
  double above = INFINITY;  // where the last label begins
  for (std::size_t i = 0; i < ticks.size(); ++i) {
    drawing.line(left, y(ticks[i]), right, y(ticks[i]), "grid");
    if (y(ticks[i]) > above - kLine) continue;  // ticks of a logarithmic axis may be close
    above = y(ticks[i]);
    drawing.text(left - 6, y(ticks[i]) + 4, Anchor::end, labels[i], "weak");
  }
}

void draw_x_labels(Drawing& drawing, const std::vector<std::pair<double, std::string>>& labels, double y,
                   bool has_marks) {
  constexpr double kGap = 8;
  // Every n-th label, so that their distances stay equal.
  for (std::size_t every = 1; every <= std::max<std::size_t>(1, labels.size()); ++every) {
    std::vector<std::pair<double, std::string>> drawn;
    double end = -INFINITY;
    bool fits = true;
    for (std::size_t i = 0; i < labels.size() && fits; i += every) {
      const double half = text_width(labels[i].second, kFont) / 2;
      const double x = std::clamp(labels[i].first, half, std::max(half, drawing.width() - half));
      fits = x - half >= end + kGap;
      end = x + half;
      drawn.emplace_back(x, labels[i].second);
    }
    if (!fits) continue;
    for (std::size_t i = 0; i < drawn.size(); ++i) {
      if (has_marks) drawing.line(labels[i * every].first, y, labels[i * every].first, y + 4, "axis");
      drawing.text(drawn[i].first, y + 16, Anchor::middle, drawn[i].second, "weak");
    }
    return;
  }
}

const std::string& title_of(const Chart& chart) {
  return std::visit([](const auto& c) -> const std::string& { return c.title; }, chart);
}

const std::string& description_of(const Chart& chart) {
  return std::visit([](const auto& c) -> const std::string& { return c.description; }, chart);
}

std::string inline_svg(const Chart& chart, double width, const std::string& id) {
  Drawing drawing(width);
  const double height = std::visit([&](const auto& c) { return draw(drawing, c, 0); }, chart);
  return fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"chart\" viewBox=\"0 0 {0} {1}\" role=\"img\" "
      "aria-labelledby=\"{2}-title {2}-text\">\n<title id=\"{2}-title\">{3}</title>\n<desc id=\"{2}-text\">{4}</desc>\n"
      "{5}</svg>\n",
      number(width), number(height), escaped(id), escaped(title_of(chart)), escaped(description_of(chart)),
      drawing.elements());
}

std::string standalone_svg(const Chart& chart, double width) {
  Drawing drawing(width);
  drawing.text(0, 16, Anchor::start, shortened(title_of(chart), kTitleFont, width), "title");
  const double height = std::visit([&](const auto& c) { return draw(drawing, c, 28); }, chart);
  return fmt::format(
      "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"chart\" "
      "width=\"{0}\" height=\"{1}\" viewBox=\"-12 -8 {0} {1}\" role=\"img\">\n<title>{2}</title>\n<desc>{3}</desc>\n"
      "<style>\n{4}</style>\n<rect x=\"-12\" y=\"-8\" width=\"{0}\" height=\"{1}\" class=\"ground\"/>\n{5}</svg>\n",
      number(width + 24), number(height + 16), escaped(title_of(chart)), escaped(description_of(chart)),
      chart_style(Colours::of_print), drawing.elements());
}

std::string chart_style(Colours colours) {
  const auto colour = [&](const std::string& name, const char* value) {
    return colours == Colours::of_page ? fmt::format("var(--{})", name) : std::string(value);
  };
  std::string css = fmt::format(
      ".chart text {{ font: {}px system-ui, -apple-system, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif; fill: {}; "
      "}}\n"
      ".chart text.weak {{ fill: {}; }}\n"
      ".chart text.title {{ font-size: {}px; font-weight: 600; }}\n"
      ".chart text.on {{ fill: #000000; }}\n"
      ".chart .ground {{ fill: {}; }}\n"
      ".chart .grid {{ stroke: {}; }}\n"
      ".chart .axis {{ stroke: {}; }}\n"
      ".chart .reference {{ stroke: {}; stroke-width: 1.5; stroke-dasharray: 5 4; fill: none; }}\n"
      ".chart .l {{ stroke-width: 2; stroke-linejoin: round; fill: none; }}\n"
      ".chart .interval {{ stroke-width: 1.5; }}\n"
      ".chart .m {{ stroke: {}; stroke-width: 1; }}\n"
      ".chart .d1 {{ stroke-dasharray: 7 3; }}\n"
      ".chart .d2 {{ stroke-dasharray: 2 3; }}\n"
      ".chart .d3 {{ stroke-dasharray: 8 3 2 3; }}\n",
      kFont, colour("text", kLight.text), colour("weak-text", kLight.weak_text), kTitleFont,
      colour("ground", kLight.ground), colour("grid", kLight.grid), colour("axis", kLight.axis),
      colour("axis", kLight.axis), colour("ground", kLight.ground));
  for (std::size_t i = 0; i < kSeriesColours; ++i) {
    const std::string value = colour(fmt::format("series-{}", i), kLight.series[i]);
    css += fmt::format(".chart .s{} {{ stroke: {}; }}\n.chart .f{} {{ fill: {}; }}\n", i, value, i, value);
  }
  return css;
}

std::string colour_properties(Theme theme) {
  const Palette& palette = theme == Theme::light ? kLight : kDark;
  std::string css = fmt::format("--text: {}; --weak-text: {}; --grid: {}; --axis: {}; --ground: {};", palette.text,
                                palette.weak_text, palette.grid, palette.axis, palette.ground);
  for (std::size_t i = 0; i < kSeriesColours; ++i) css += fmt::format(" --series-{}: {};", i, palette.series[i]);
  return css;
}

namespace {

constexpr char32_t kReplacement = 0xFFFD;

/// The characters of a text. U+FFFD replaces what is not UTF-8.
std::vector<char32_t> characters_of(std::string_view text) {
  std::vector<char32_t> characters;
  for (std::size_t at = 0; at < text.size();) {
    const CodePoint next = code_point_at(text, at);
    characters.push_back(next.is_valid ? next.value : kReplacement);
    at += next.n_bytes;
  }
  return characters;
}

bool is_forbidden(char32_t code) {
  const bool is_control = (code < 0x20 && code != '\n' && code != '\t') || (code >= 0x7F && code < 0xA0);
  const bool is_direction = (code >= 0x202A && code <= 0x202E) || (code >= 0x2066 && code <= 0x2069);
  return is_control || is_direction || code == 0xFFFE || code == 0xFFFF;
}

/// The width of a character in units of the font size. It is wider than most characters in Arial, DejaVu Sans and
/// Roboto.
double width_of(char32_t code) {
  if (code >= 0x1100) return 1.05;  // Chinese, Japanese, Korean, symbols
  constexpr std::string_view kNarrow = "iljtfrI.,:;|!'()[] /", kWide = "mwMWQO@%&";
  if (code < 0x80 && kNarrow.find(static_cast<char>(code)) != std::string_view::npos) return 0.4;
  if (code < 0x80 && kWide.find(static_cast<char>(code)) != std::string_view::npos) return 0.98;
  return code >= 'A' && code <= 'Z' ? 0.72 : 0.63;
}

}  // namespace

std::string escaped(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (const char32_t character : characters_of(text)) {
    if (character == '&')
      out += "&amp;";
    else if (character == '<')
      out += "&lt;";
    else if (character == '>')
      out += "&gt;";
    else if (character == '"')
      out += "&quot;";
    else if (character == '\'')
      out += "&#39;";
    else
      append_code_point(out, is_forbidden(character) ? kReplacement : character);
  }
  return out;
}

double text_width(std::string_view text, double font_size) {
  double width = 0;
  for (const char32_t character : characters_of(text)) width += width_of(character);
  return width * font_size;
}

std::string shortened(std::string_view text, double font_size, double width) {
  if (text_width(text, font_size) <= width) return std::string(text);
  std::string out;
  for (const char32_t character : characters_of(text)) {
    std::string longer = out;
    append_code_point(longer, character);
    if (text_width(longer + "…", font_size) > width) break;
    out = longer;
  }
  return out + "…";
}

}  // namespace lockstep::page
