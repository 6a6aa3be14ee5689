// A page with figures as one HTML file, which is also XML: no script, no network, no other file. It is readable on
// phones (from 320 pixels) and desktops, in light and dark, and printed. All texts may come from users: they are
// escaped, and in addition a content security policy forbids scripts and requests.
//
// Charts are drawn twice, for narrow and for wide windows, and the style sheet shows one of the two. Their text is thus
// at least 11 pixels high in both.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "page/chart.h"

namespace lockstep::page {

using Row = std::pair<std::string, std::string>;  // what, and its value

enum class Width { column, whole };  // in wide windows, charts of one column are next to each other
enum class Shown { open, folded };   // folded: a click on the title shows it

class Page {
 public:
  /// `lead`: one or two sentences below the title.
  Page(std::string title, std::string lead) : title_(std::move(title)), lead_(std::move(lead)) {}

  void add_key_figures(const std::vector<Row>& figures);
  void add_section(const std::string& title);
  void add_paragraph(const std::string& text);
  /// Left out if it has no data. `name`: of the file of write_figures(), such as "loss"; a unique word.
  void add_chart(const std::string& name, Chart chart, Width width = Width::column);
  void add_table(const std::string& title, const std::vector<Row>& rows, Shown shown = Shown::open);
  /// Lines of text as they are, such as those of a log.
  void add_text(const std::string& title, const std::string& text);

  std::string html() const;

  struct Figure {
    std::string name;
    Chart chart;
  };
  const std::vector<Figure>& figures() const { return figures_; }

 private:
  void close_charts();

  std::string title_, lead_, body_;
  std::vector<Figure> figures_;
  bool is_in_charts_ = false;  // consecutive charts share a grid
};

/// Writes each figure as DIRECTORY/NAME.svg and, if the program rsvg-convert is installed, as DIRECTORY/NAME.png.
/// Returns the paths; `has_png` is false if it is not installed. Throws Error (system_call) if a file cannot be
/// written.
struct WrittenFigures {
  std::vector<std::string> paths;
  bool has_png = false;
};
WrittenFigures write_figures(const Page& page, const std::string& directory);

}  // namespace lockstep::page
