// The confusion matrix as an SVG picture: one square per pair of classes, which is darker the greater its share of the
// row is. Rows are labels, columns are predictions.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "tasks/image_classification/class_tally.h"

namespace lockstep::tasks {
namespace {

constexpr int kMaxLabelled = 60;  // with more classes, names and numbers would be too small to read
constexpr int kMargin = 16, kTitle = 30, kFont = 12;
constexpr double kCharacterWidth = 0.62;  // approximately, relative to the font size

std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '<')
      out += "&lt;";
    else if (c == '>')
      out += "&gt;";
    else if (c == '&')
      out += "&amp;";
    else if (static_cast<unsigned char>(c) >= 0x20)  // XML forbids control characters
      out += c;
  }
  return out;
}

/// A colour from white to dark blue. Small shares are emphasised, so that rare confusions are visible.
std::string colour(double share) {
  const double depth = std::sqrt(share);
  const auto mix = [&](double light, double dark) {
    return static_cast<int>(std::lround(light + depth * (dark - light)));
  };
  return fmt::format("#{:02x}{:02x}{:02x}", mix(255, 8), mix(255, 48), mix(255, 107));
}

}  // namespace

std::string confusion_picture(const std::string& title, const ClassTally& tally,
                              const std::vector<std::string>& names) {
  const int n = static_cast<int>(names.size());
  const bool has_labels = n <= kMaxLabelled;
  const double cell = has_labels ? std::max(14.0, std::min(44.0, 720.0 / n)) : std::max(1.0, 900.0 / n);
  std::size_t longest = 0;
  for (const std::string& name : names) longest = std::max(longest, name.size());
  const double label_width =
      has_labels ? kCharacterWidth * kFont * static_cast<double>(std::min<std::size_t>(longest, 30)) + 8 : 20;
  const double left = kMargin + label_width, top = kMargin + kTitle + label_width;
  const double side = n * cell;
  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0:.0f}\" height=\"{1:.0f}\" viewBox=\"0 0 {0:.0f} {1:.0f}\" "
      "font-family=\"sans-serif\" font-size=\"{2}\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
      "<text x=\"{3}\" y=\"{4}\" font-size=\"14\">{5}: rows are labels, columns are predictions</text>\n",
      std::max(left + side + kMargin, 480.0), top + side + kMargin, kFont, kMargin, kMargin + 12, escaped(title));
  for (int label = 0; label < n; ++label) {
    const std::int64_t n_samples = tally.samples_of(label);
    for (int k = 0; k < n; ++k) {
      const std::int64_t count = tally.count(label, k);
      if (count == 0) continue;
      const double share = static_cast<double>(count) / static_cast<double>(n_samples);
      const double x = left + k * cell, y = top + label * cell;
      svg += fmt::format(
          "<rect x=\"{:.2f}\" y=\"{:.2f}\" width=\"{:.2f}\" height=\"{:.2f}\" fill=\"{}\"><title>{} as {}: "
          "{}</title></rect>\n",
          x, y, cell, cell, colour(share), escaped(names[static_cast<std::size_t>(label)]),
          escaped(names[static_cast<std::size_t>(k)]), count);
      if (cell >= 24)
        svg += fmt::format("<text x=\"{:.2f}\" y=\"{:.2f}\" text-anchor=\"middle\" fill=\"{}\">{}</text>\n",
                           x + cell / 2, y + cell / 2 + 4, share > 0.3 ? "white" : "black", count);
    }
    if (!has_labels) continue;
    const std::string name = escaped(names[static_cast<std::size_t>(label)]);
    const double middle = (label + 0.5) * cell + 4;
    svg += fmt::format("<text x=\"{:.2f}\" y=\"{:.2f}\" text-anchor=\"end\">{}</text>\n", left - 6, top + middle, name);
    svg += fmt::format("<text transform=\"translate({:.2f} {:.2f}) rotate(-90)\">{}</text>\n", left + middle, top - 6,
                       name);
  }
  svg += fmt::format(
      "<rect x=\"{:.2f}\" y=\"{:.2f}\" width=\"{:.2f}\" height=\"{:.2f}\" fill=\"none\" stroke=\"#888\"/>\n</svg>\n",
      left, top, side, side);
  return svg;
}

}  // namespace lockstep::tasks
