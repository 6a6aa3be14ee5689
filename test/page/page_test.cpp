// Ticks, texts, charts and pages. test/commands/report_page_test.sh also tests with real pages that they are
// well-formed and that no texts overlap.
#include "page/page.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <string>
#include <vector>

#include "base/numbers.h"
#include "page/drawing.h"
#include "page/ticks.h"

namespace lockstep::page {
namespace {

using Numbers = std::vector<double>;
using Texts = std::vector<std::string>;

TEST(Ticks, DistancesAreOneTwoOrFiveTimesAPowerOfTen) {
  EXPECT_DOUBLE_EQ(tick_distance(10, 10), 1);
  EXPECT_DOUBLE_EQ(tick_distance(10, 9), 2);
  EXPECT_DOUBLE_EQ(tick_distance(0.7, 4), 0.2);
  EXPECT_DOUBLE_EQ(tick_distance(9000, 2), 5000);
  EXPECT_DOUBLE_EQ(tick_distance(3e-7, 3), 1e-7);
}

TEST(Ticks, LinearOnesAreMultiplesWithinTheRange) {
  EXPECT_EQ(tick_texts(linear_ticks(0.13, 1.02, 6)), (Texts{"0.2", "0.4", "0.6", "0.8", "1.0"}));
  EXPECT_EQ(tick_texts(linear_ticks(-1, 1, 5)), (Texts{"-1.0", "-0.5", "0.0", "0.5", "1.0"}));
  EXPECT_EQ(tick_texts(linear_ticks(0, 24000, 4)), (Texts{"0", "10,000", "20,000"}));
  EXPECT_EQ(linear_ticks(1, 3, 9, /*whole=*/true), (Numbers{1, 2, 3}));
  EXPECT_EQ(linear_ticks(5, 5, 6), Numbers{5});
  EXPECT_LE(linear_ticks(1e17, 1e17 + 32, 7).size(), 7U);  // neighbouring numbers are 16 apart
}

TEST(Ticks, LogarithmicOnesArePowersOfTenOrOneTwoAndFive) {
  EXPECT_EQ(tick_texts(logarithmic_ticks(0.5, 2000, 7)), (Texts{"1", "10", "100", "1,000"}));
  EXPECT_EQ(tick_texts(logarithmic_ticks(1, 30, 7)), (Texts{"1", "2", "5", "10", "20"}));
  EXPECT_LE(logarithmic_ticks(1e-12, 1e12, 5).size(), 5U);
  EXPECT_EQ(tick_texts({1e-6, 1e-3, 1}), (Texts{"1e-6", "1e-3", "1"}));
  EXPECT_GE(logarithmic_ticks(3.1, 3.3, 7).size(), 2U);  // there is no power of ten nearby
}

TEST(Ticks, TextsHaveEqualDecimalsAndShortExponents) {
  EXPECT_EQ(tick_texts({0, 2e7, 4e7}), (Texts{"0", "2e7", "4e7"}));
  EXPECT_EQ(tick_texts({0, 0.0002, 0.0004}), (Texts{"0", "2e-4", "4e-4"}));
  EXPECT_EQ(tick_texts(linear_ticks(0, 0.0003, 7)), (Texts{"0", "5e-5", "1e-4", "1.5e-4", "2e-4", "2.5e-4", "3e-4"}));
  EXPECT_EQ(tick_texts({0.002, 0.004}), (Texts{"0.002", "0.004"}));
}

TEST(Ticks, ValuesAreReadable) {
  EXPECT_EQ(value_text(0), "0");
  EXPECT_EQ(value_text(2.30259), "2.303");
  EXPECT_EQ(value_text(0.5), "0.5");
  EXPECT_EQ(value_text(123456.7), "123,457");
  EXPECT_EQ(value_text(-0.00213), "-0.00213");
  EXPECT_EQ(value_text(1.5e-7), "1.5e-7");
  EXPECT_EQ(value_text(std::nan("")), "-");
  EXPECT_EQ(unit_of_seconds(0.25).name, "ms");
  EXPECT_EQ(unit_of_seconds(1e5).name, "h");
  EXPECT_EQ(unit_of_bytes(5e9).name, "GiB");
}

TEST(Markup, NothingInATextCanBeMarkup) {
  EXPECT_EQ(escaped("</svg><script>alert('1' & \"2\")</script>"),
            "&lt;/svg&gt;&lt;script&gt;alert(&#39;1&#39; &amp; &quot;2&quot;)&lt;/script&gt;");
  EXPECT_EQ(escaped("]]> &amp; -->"), "]]&gt; &amp;amp; --&gt;");
  EXPECT_EQ(escaped("l\u00f6ss \u4e2d"), "l\u00f6ss \u4e2d");
}

TEST(Markup, CharactersThatXmlForbidsAreReplaced) {
  EXPECT_EQ(escaped(std::string_view("a\0b", 3)), "a\uFFFDb");
  EXPECT_EQ(escaped("\x1b[31m\n\tx"), "\uFFFD[31m\n\tx");
  EXPECT_EQ(escaped("\xEF\xBF\xBF"), "\uFFFD");            // U+FFFF
  EXPECT_EQ(escaped("gpj.\u202Efile"), "gpj.\uFFFDfile");  // would be shown as gpj.elif
  EXPECT_EQ(escaped("\xff<").substr(escaped("\xff<").size() - 4), "&lt;");
}

TEST(Markup, LongTextsAreShortenedToAWidth) {
  const std::string text(200, 'w');
  const std::string shorter = shortened(text, 12, 100);
  EXPECT_LE(text_width(shorter, 12), 100);
  EXPECT_TRUE(shorter.ends_with("…"));
  EXPECT_EQ(shortened("short", 12, 100), "short");
}

/// The elements are closed in the order in which they were opened.
bool is_well_formed(const std::string& xml) {
  Texts open;
  for (std::size_t at = xml.find('<'); at != std::string::npos; at = xml.find('<', at + 1)) {
    const std::size_t end = xml.find('>', at);
    if (end == std::string::npos) return false;
    const std::string tag = xml.substr(at + 1, end - at - 1);
    if (tag.starts_with('?') || tag.starts_with('!') || tag.ends_with('/')) continue;
    const std::string name = tag.substr(tag.starts_with('/'), tag.find_first_of(" \n") - tag.starts_with('/'));
    if (!tag.starts_with('/')) {
      open.push_back(name);
    } else if (open.empty() || open.back() != name) {
      return false;
    } else {
      open.pop_back();
    }
  }
  return open.empty();
}

std::size_t count(const std::string& text, const std::string& part) {
  std::size_t n = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++n;
  return n;
}

LineChart speedup() {
  LineChart chart{.title = "Speedup <1>", .x = {.label = "ranks"}, .y = {.label = "speedup", .from_zero = true}};
  chart.x.is_logarithmic = true;
  chart.x.ticks = {1, 2, 4, 8};
  chart.series.push_back({.name = "measured & fitted",
                          .points = {{1, 1, 0.9, 1.1}, {2, 1.9, 1.8, 2}, {4, 3.5, 3, 4}, {8, 6}},
                          .style = Style::line_with_markers});
  chart.series.push_back({.name = "ideal", .points = {{1, 1}, {8, 8}}, .style = Style::reference});
  return chart;
}

TEST(Charts, LinesHaveTheirPointsIntervalsAndReference) {
  const std::string svg = inline_svg(speedup(), 540, "speedup");
  EXPECT_TRUE(is_well_formed(svg)) << svg;
  EXPECT_EQ(count(svg, "<circle"), 5U);           // four points, and the legend
  EXPECT_EQ(count(svg, "s0 interval"), 3U * 3U);  // the last point has no interval
  EXPECT_EQ(count(svg, "class=\"reference\""), 2U);
  EXPECT_NE(svg.find("<title id=\"speedup-title\">Speedup &lt;1&gt;</title>"), std::string::npos);
  EXPECT_EQ(svg.find("measured & fitted"), std::string::npos);
}

// The least certain point must not look like an exact one.
TEST(Charts, IntervalsThatReachZeroAreDrawnToTheEndOfALogarithmicAxis) {
  for (const double low : {0.0, -3.0}) {
    LineChart chart = speedup();
    chart.y = {.label = "speedup", .is_logarithmic = true};
    chart.series[0].points = {{1, 1, 0.9, 1.1}, {2, 1.9, low, 8}};
    const std::string svg = inline_svg(chart, 540, "speedup");
    EXPECT_EQ(count(svg, "s0 interval"), 3U + 2U) << "the open interval has one end\n" << svg;
    EXPECT_EQ(svg.find("nan"), std::string::npos);
    EXPECT_EQ(svg.find("inf"), std::string::npos);
    // The bottom of the plot, where the axis is: the only "axis" line that is horizontal.
    double axis = NAN, bottom = NAN;
    const std::size_t at = svg.find("class=\"axis\"");
    std::sscanf(svg.c_str() + svg.rfind("<line", at), "<line x1=\"%*f\" y1=\"%lf\"", &axis);
    for (std::size_t i = svg.find("s0 interval"); i != std::string::npos; i = svg.find("s0 interval", i + 1)) {
      double y1 = NAN, y2 = NAN;
      std::sscanf(svg.c_str() + svg.rfind("<line", i), "<line x1=\"%*f\" y1=\"%lf\" x2=\"%*f\" y2=\"%lf\"", &y1, &y2);
      bottom = std::fmax(bottom, std::fmax(y1, y2));
    }
    EXPECT_DOUBLE_EQ(bottom, axis);
  }
}

TEST(Charts, LabelsOfCloseTicksAreThinned) {
  LineChart chart = speedup();
  chart.y = {.label = "speedup", .is_logarithmic = true, .ticks = {1, 2, 3, 63, 64}};
  const std::string svg = inline_svg(chart, 340, "speedup");
  EXPECT_EQ(count(svg, "class=\"grid\""), 5U) << svg;
  EXPECT_EQ(count(svg, ">63</text>"), 1U);
  EXPECT_EQ(count(svg, ">64</text>"), 0U);
}

TEST(Charts, ValuesThatAreNotFiniteInterruptALine) {
  LineChart chart{.title = "loss"};
  chart.series.push_back({.name = "loss", .points = {{1, 3}, {2, 2}, {3, NAN}, {4, 2}, {5, 1}, {6, INFINITY}}});
  const std::string svg = inline_svg(chart, 540, "loss");
  EXPECT_EQ(count(svg, "<polyline"), 2U);
  EXPECT_EQ(svg.find("nan"), std::string::npos);
  EXPECT_EQ(svg.find("inf"), std::string::npos);
  chart.series[0].points = {{1, NAN}};
  EXPECT_FALSE(has_data(chart));
}

TEST(Charts, ValuesOfAnySizeAreDrawnOrLeftOut) {
  for (const Numbers& values : {Numbers{1e308, -1e308, 1}, Numbers{1e-310, 2e-310}, Numbers{1e17, 1e17 + 16},
                                Numbers{-5, -5}, Numbers{0, 1e99}}) {
    for (const bool is_logarithmic : {false, true}) {
      LineChart chart{.title = "loss", .y = {.label = "", .is_logarithmic = is_logarithmic}};
      chart.series.push_back({.name = "loss"});
      for (const double value : values) chart.series[0].points.push_back({.x = value, .y = value});
      const std::string svg = inline_svg(chart, 340, "loss");
      EXPECT_TRUE(is_well_formed(svg));
      EXPECT_EQ(svg.find("nan"), std::string::npos) << values[0] << svg;
      EXPECT_EQ(svg.find("inf"), std::string::npos) << values[0];
    }
  }
}

TEST(Charts, MillionsOfPointsBecomeFew) {
  LineChart chart{.title = "loss"};
  chart.series.push_back({.name = "loss"});
  for (int step = 0; step < 300'000; ++step)
    chart.series[0].points.push_back({.x = double(step),
                                      .y = step == 150'001  ? 9.0
                                           : step == 90'001 ? 0.5
                                                            : 1.0 + step % 2});
  const std::string svg = inline_svg(chart, 540, "loss");
  EXPECT_LT(svg.size(), 40'000U);
  // The only value of 9 is kept, at nine tenths of the axis, which ends at 10: 252.8 - 0.9 * 226.8.
  EXPECT_NE(svg.find(",48.7 "), std::string::npos);
  EXPECT_NE(svg.find(",241.5 "), std::string::npos);  // so is the only one of 0.5
}

struct Extent {
  double top = NAN, height = NAN;
};
/// The extent of the rectangle with this hint.
Extent extent_of(const std::string& svg, const std::string& hint) {
  Extent extent;
  const std::size_t at = svg.find("<title>" + hint), begin = svg.rfind("<rect", at);
  if (at != std::string::npos && begin != std::string::npos)
    std::sscanf(svg.c_str() + begin, "<rect x=\"%*f\" y=\"%lf\" width=\"%*f\" height=\"%lf\"", &extent.top,
                &extent.height);
  return extent;
}

TEST(Charts, BarsAreStackedUpToTheirSum) {
  const StackedBars chart{.title = "time",
                          .x_label = "ranks",
                          .y_label = "ms",
                          .bars = {"1", "2"},
                          .parts = {{"computing", {6, 5}}, {"waiting", {0, 5}}}};
  const std::string svg = inline_svg(chart, 540, "time");
  EXPECT_TRUE(is_well_formed(svg));
  EXPECT_EQ(count(svg, "<rect"), 2U + 3U);  // the legend; nothing is drawn for a part of zero
  const Extent computing = extent_of(svg, "2, computing: 5<"), waiting = extent_of(svg, "2, waiting: 5<");
  EXPECT_NEAR(waiting.height, computing.height, 0.02);  // numbers are written with two decimals
  EXPECT_NEAR(waiting.top + waiting.height, computing.top, 0.02);
  EXPECT_NE(svg.find(">10</text>"), std::string::npos);
  EXPECT_FALSE(has_data(StackedBars{.title = "none", .bars = {"1"}, .parts = {{"computing", {0}}}}));
}

TEST(Charts, LabelsOfBarsAreThinned) {
  StackedBars chart{.title = "memory", .parts = {{.name = "memory"}}};
  for (int rank = 1000; rank < 1064; ++rank) {
    chart.bars.push_back(std::to_string(rank));
    chart.parts[0].values.push_back(1);
  }
  const std::string svg = inline_svg(chart, 340, "memory");
  EXPECT_EQ(count(svg, "<rect"), 64U);
  EXPECT_LT(count(svg, "<text"), 20U);
}

TEST(Charts, ATimelineCutsSpansAtItsEnds) {
  const Timeline chart{.title = "step",
                       .x_label = "ms",
                       .length = 10,
                       .kinds = {"forward", "wait"},
                       .rows = {{"rank 0", {{-5, 5, 0, 0, "conv<1>"}, {8, 30, 1, 1, "data"}}}}};
  const std::string svg = inline_svg(chart, 540, "timeline");
  EXPECT_TRUE(is_well_formed(svg));
  EXPECT_NE(svg.find("x=\"0.00\""), std::string::npos);
  EXPECT_EQ(svg.find("x=\"-"), std::string::npos);
  EXPECT_NE(svg.find("conv&lt;1&gt; (forward), 10"), std::string::npos);
}

TEST(Charts, AFileHasItsColours) {
  const std::string svg = standalone_svg(speedup());
  EXPECT_TRUE(svg.starts_with("<?xml"));
  EXPECT_TRUE(is_well_formed(svg.substr(0, svg.find("<style>")) + svg.substr(svg.find("</style>") + 8)));
  EXPECT_EQ(svg.find("var("), std::string::npos);
  EXPECT_NE(svg.find("#0072b2"), std::string::npos);
}

TEST(Pages, ArePutTogetherInOrderAndEscaped) {
  Page page("<b>run</b>", "of \"today\"");
  page.add_key_figures({{"loss <", "1 & 2"}});
  page.add_section("Training");
  page.add_chart("speedup", speedup());
  page.add_chart("empty", LineChart{.title = "nothing"});
  page.add_table("keys", {{"a", "</td>"}}, Shown::folded);
  page.add_text("log", "</pre><script>x</script>");
  const std::string html = page.html();
  EXPECT_EQ(html.find("<b>"), std::string::npos);
  EXPECT_EQ(html.find("<script"), std::string::npos);
  EXPECT_EQ(html.find("http://www.w3.org/2000/svg\" src"), std::string::npos);
  EXPECT_EQ(count(html, "<figure"), 1U);
  EXPECT_EQ(count(html, "<svg"), 2U);
  EXPECT_LT(html.find("<figure"), html.find("<details>"));
  const std::string body = html.substr(html.find("<body>"), html.find("</html>") - html.find("<body>"));
  EXPECT_TRUE(is_well_formed(body));
  ASSERT_EQ(page.figures().size(), 1U);
  EXPECT_EQ(page.figures()[0].name, "speedup");
}

}  // namespace
}  // namespace lockstep::page
