#include "tasks/image_classification/class_tally.h"

#include <fmt/format.h>
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "base/printable.h"
#include "data/image_set.h"
#include "lockstep/error.h"

namespace lockstep::tasks {

namespace {

constexpr int kTop = 5;
constexpr int kMaxTable = 20;       // classes in a complete table
constexpr std::size_t kWorst = 10;  // rows of the tables of the worst classes and confusions

/// The position of the label in the fields of an image set.
constexpr std::size_t kLabelPosition = 1;

/// An output that is not a number is less than all others.
float rankable(float output) { return std::isnan(output) ? -std::numeric_limits<float>::infinity() : output; }

double share(std::int64_t part, std::int64_t whole) {
  return whole > 0 ? static_cast<double>(part) / static_cast<double>(whole) : 0;
}

std::size_t width_of(const std::vector<std::string>& names) {
  std::size_t width = 5;
  for (const std::string& name : names) width = std::max(width, name.size());
  return width;
}

}  // namespace

ClassTally::ClassTally(int n_classes, std::vector<std::string> names)
    : n_classes_(n_classes),
      names_(std::move(names)),
      counts_(1 + static_cast<std::size_t>(n_classes) * static_cast<std::size_t>(n_classes)) {
  for (auto i = static_cast<int>(names_.size()); i < n_classes_; ++i) names_.push_back(std::to_string(i));
  for (const std::string& name : names_) shown_names_.push_back(printable(name, kMaxColumnBytes));
}

void ClassTally::add(const data::Batch& batch, std::span<const float> outputs) {
  const std::span<const std::byte> labels = batch.fields[kLabelPosition];
  for (std::int64_t i = 0; i < batch.n_samples; ++i) {
    std::int32_t label = -1;
    std::memcpy(&label, labels.data() + static_cast<std::size_t>(i) * sizeof label, sizeof label);
    add(label, outputs.subspan(static_cast<std::size_t>(i * n_classes_), static_cast<std::size_t>(n_classes_)));
  }
}

void ClassTally::add(std::int32_t label, std::span<const float> outputs) {
  if (label < 0 || label >= n_classes_) return;
  const float own = rankable(outputs[static_cast<std::size_t>(label)]);
  int n_better = 0, predicted = 0;
  for (int k = 0; k < n_classes_; ++k) {
    const float output = rankable(outputs[static_cast<std::size_t>(k)]);
    if (output > own || (output == own && k < label)) ++n_better;
    if (output > rankable(outputs[static_cast<std::size_t>(predicted)])) predicted = k;
  }
  if (n_better < kTop) ++counts_[0];
  ++counts_[place(label, predicted)];
}

std::string ClassTally::counts() const {
  return {reinterpret_cast<const char*>(counts_.data()), counts_.size() * sizeof(std::int64_t)};
}

void ClassTally::add_counts(std::string_view counts) {
  require(counts.size() == counts_.size() * sizeof(std::int64_t), ErrorCode::internal,
          "a rank counted another number of classes");
  std::vector<std::int64_t> more(counts_.size());
  std::memcpy(more.data(), counts.data(), counts.size());
  for (std::size_t i = 0; i < more.size(); ++i) counts_[i] += more[i];
}

std::int64_t ClassTally::samples_of(int label) const {
  const auto row = counts_.begin() + static_cast<std::ptrdiff_t>(place(label, 0));
  return std::accumulate(row, row + n_classes_, std::int64_t{0});
}

std::int64_t ClassTally::n_samples() const {
  return std::accumulate(counts_.begin() + 1, counts_.end(), std::int64_t{0});
}

double ClassTally::accuracy_of(int label) const { return share(count(label, label), samples_of(label)); }
double ClassTally::top5_accuracy() const { return share(counts_[0], n_samples()); }

nlohmann::ordered_json ClassTally::json() const {
  using Json = nlohmann::ordered_json;
  Json classes = Json::array(), matrix = Json::array();
  for (int label = 0; label < n_classes_; ++label) {
    const std::int64_t n = samples_of(label);
    classes.push_back({{"class", label},
                       {"name", names_[static_cast<std::size_t>(label)]},
                       {"samples", n},
                       {"accuracy", n > 0 ? Json(accuracy_of(label)) : Json()}});
    Json row = Json::array();
    for (int k = 0; k < n_classes_; ++k) row.push_back(count(label, k));
    matrix.push_back(row);
  }
  return {{"top5_accuracy", top5_accuracy()}, {"classes", classes}, {"confusion", matrix}};
}

std::string ClassTally::summary() const {
  return n_classes_ > kTop ? fmt::format("top-5 accuracy {:.2f}%", 100 * top5_accuracy()) : "";
}

std::string ClassTally::text() const { return n_classes_ <= kMaxTable ? matrix_text() : worst_text(); }

std::string ClassTally::matrix_text() const {
  const std::size_t name_width = width_of(shown_names_);
  std::size_t width = 4;
  for (int label = 0; label < n_classes_; ++label)
    width = std::max(width, std::to_string(samples_of(label)).size() + 1);
  std::string text = fmt::format("{:<{}} {:>8} {:>9}   predicted as class\n{:<{}} {:>8} {:>9}  ", "", name_width, "",
                                 "", "class", name_width, "samples", "accuracy");
  for (int k = 0; k < n_classes_; ++k) text += fmt::format("{:>{}}", k, width);
  for (int label = 0; label < n_classes_; ++label) {
    const std::int64_t n = samples_of(label);
    text += fmt::format("\n{:<{}} {:>8} {:>9}  ", shown_names_[static_cast<std::size_t>(label)], name_width, n,
                        n > 0 ? fmt::format("{:.2f}%", 100 * accuracy_of(label)) : "-");
    for (int k = 0; k < n_classes_; ++k) text += fmt::format("{:>{}}", count(label, k), width);
  }
  return text + "\n";
}

/// If there are many classes: those with the lowest accuracy, and the most frequent confusions.
std::string ClassTally::worst_text() const {
  std::vector<int> labels;
  struct Confusion {
    std::int64_t count = 0;
    int label = 0, predicted = 0;
  };
  std::vector<Confusion> confusions;
  for (int label = 0; label < n_classes_; ++label) {
    if (samples_of(label) > 0) labels.push_back(label);
    for (int k = 0; k < n_classes_; ++k)
      if (k != label && count(label, k) > 0) confusions.push_back({count(label, k), label, k});
  }
  std::ranges::stable_sort(labels, {}, [this](int label) { return accuracy_of(label); });
  std::ranges::stable_sort(confusions, std::ranges::greater(), &Confusion::count);
  labels.resize(std::min(labels.size(), kWorst));
  confusions.resize(std::min(confusions.size(), kWorst));
  const std::size_t width = width_of(shown_names_);
  const auto name = [this](int k) -> const std::string& { return shown_names_[static_cast<std::size_t>(k)]; };
  std::string text = fmt::format("{:<{}} {:>8} {:>9}   (the {} lowest of {} classes)\n", "class", width, "samples",
                                 "accuracy", labels.size(), n_classes_);
  for (const int label : labels)
    text += fmt::format("{:<{}} {:>8} {:>8.2f}%\n", name(label), width, samples_of(label), 100 * accuracy_of(label));
  text += fmt::format("\n{:<{}} {:<{}} {:>8}   (the {} most frequent confusions)\n", "class", width, "predicted as",
                      std::max<std::size_t>(width, 12), "samples", confusions.size());
  for (const Confusion& c : confusions)
    text += fmt::format("{:<{}} {:<{}} {:>8}\n", name(c.label), width, name(c.predicted),
                        std::max<std::size_t>(width, 12), c.count);
  return text;
}

std::string ClassTally::picture(const std::string& title) const { return confusion_picture(title, *this, names_); }

// The confusion matrix as an SVG picture: one square per pair of classes, which is darker the greater its share of the
// row is. Rows are labels, columns are predictions.

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
