#include "page/page.h"

#include <fmt/format.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>

#include "base/file.h"
#include "lockstep/error.h"
#include "page/drawing.h"

extern char** environ;

namespace lockstep::page {
namespace {

constexpr double kNarrow = 340, kWide = 540, kWideWhole = 790;

// The font of charts has 12 units (page/drawing.h). Narrow charts are used in windows of up to 759 pixels, where they
// are shown at 0.92 of their size or more (from 343 pixels on). Wide charts are shown at their own size or more, and
// charts over the whole width at 0.92 or more.
constexpr const char* kLayout = R"(* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 1152px; padding: 20px 16px 40px; background: var(--ground); color: var(--text);
  font: 16px/1.5 system-ui, -apple-system, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif; overflow-wrap: anywhere; }
h1 { font-size: 26px; line-height: 1.25; margin: 0 0 4px; }
h2 { font-size: 20px; margin: 32px 0 8px; }
h3, figcaption, summary { font-size: 16px; font-weight: 600; margin: 0; }
p { margin: 4px 0 8px; max-width: 75ch; }
.weak, figcaption + p, dt, footer { color: var(--weak-text); }
figcaption + p { font-size: 14px; }
dl { display: grid; grid-template-columns: repeat(auto-fill, minmax(150px, 1fr)); gap: 8px; margin: 16px 0; }
dl div { border: 1px solid var(--grid); border-radius: 8px; padding: 8px 12px; }
dt { font-size: 13px; }
dd { margin: 0; font-size: 18px; font-weight: 600; }
.charts { display: grid; grid-template-columns: minmax(0, 1fr); gap: 28px 32px; margin-top: 12px; }
figure { margin: 0; min-width: 0; }
svg.chart { display: block; width: 100%; height: auto; margin-top: 8px; }
.wide > svg { max-width: 720px; }
.whole .wide > svg { max-width: none; }
.narrow { display: none; }
.narrow > svg { max-width: 520px; }
table { border-collapse: collapse; width: 100%; font-size: 14px; margin: 8px 0 16px; }
th, td { text-align: left; vertical-align: top; padding: 4px 12px 4px 0; border-bottom: 1px solid var(--grid); }
th { font-weight: 400; color: var(--weak-text); width: 34%; }
summary { cursor: pointer; margin-top: 12px; }
pre { font: 13px/1.45 ui-monospace, 'DejaVu Sans Mono', monospace; white-space: pre; overflow-x: auto; margin: 8px 0;
  padding: 10px 12px; border: 1px solid var(--grid); border-radius: 8px; }
footer { font-size: 13px; margin-top: 32px; }
@media screen and (max-width: 759px) {
  .wide { display: none; }
  .narrow { display: block; }
  th { width: 46%; }
}
@media screen and (min-width: 1160px) {
  .charts { grid-template-columns: minmax(0, 1fr) minmax(0, 1fr); }
  .whole { grid-column: 1 / -1; }
}
@media print {
  body { padding: 0; max-width: none; font-size: 11pt; }
  pre { white-space: pre-wrap; }
  figure, dl div, tr { break-inside: avoid; }
  h2, h3, figcaption { break-after: avoid; }
}
)";

std::string style() {
  return fmt::format(
      ":root {{ color-scheme: light dark; {} }}\n@media screen and (prefers-color-scheme: dark) {{\n  :root {{ {} }}\n"
      "}}\n{}{}",
      colour_properties(Theme::light), colour_properties(Theme::dark), kLayout, chart_style(Colours::of_page));
}

}  // namespace

void Page::close_charts() {
  if (is_in_charts_) body_ += "</div>\n";
  is_in_charts_ = false;
}

void Page::add_key_figures(const std::vector<Row>& figures) {
  close_charts();
  body_ += "<dl>\n";
  for (const auto& [name, value] : figures)
    body_ += fmt::format("<div><dt>{}</dt><dd>{}</dd></div>\n", escaped(name), escaped(value));
  body_ += "</dl>\n";
}

void Page::add_section(const std::string& title) {
  close_charts();
  body_ += fmt::format("<h2>{}</h2>\n", escaped(title));
}

void Page::add_paragraph(const std::string& text) {
  close_charts();
  body_ += fmt::format("<p>{}</p>\n", escaped(text));
}

void Page::add_chart(const std::string& name, Chart chart, Width width) {
  if (!has_data(chart)) return;
  if (!is_in_charts_) body_ += "<div class=\"charts\">\n";
  is_in_charts_ = true;
  const bool is_whole = width == Width::whole;
  body_ += fmt::format(
      "<figure id=\"{0}\"{1}>\n<figcaption>{2}</figcaption>\n<p>{3}</p>\n<div class=\"wide\">\n{4}</div>\n"
      "<div class=\"narrow\">\n{5}</div>\n</figure>\n",
      escaped(name), is_whole ? " class=\"whole\"" : "", escaped(title_of(chart)), escaped(description_of(chart)),
      inline_svg(chart, is_whole ? kWideWhole : kWide, name + "-wide"), inline_svg(chart, kNarrow, name + "-narrow"));
  figures_.push_back({.name = name, .chart = std::move(chart)});
}

void Page::add_table(const std::string& title, const std::vector<Row>& rows, Shown shown) {
  close_charts();
  const std::string heading = escaped(title);
  body_ += shown == Shown::folded ? fmt::format("<details>\n<summary>{}</summary>\n", heading)
           : title.empty()        ? ""
                                  : fmt::format("<h3>{}</h3>\n", heading);
  body_ += "<table>\n";
  for (const auto& [name, value] : rows)
    body_ += fmt::format("<tr><th scope=\"row\">{}</th><td>{}</td></tr>\n", escaped(name), escaped(value));
  body_ += "</table>\n";
  if (shown == Shown::folded) body_ += "</details>\n";
}

void Page::add_text(const std::string& title, const std::string& text) {
  close_charts();
  body_ += fmt::format("<h3>{}</h3>\n<pre>{}</pre>\n", escaped(title), escaped(text));
}

std::string Page::html() const {
  return fmt::format(
      "<!DOCTYPE html>\n<html xmlns=\"http://www.w3.org/1999/xhtml\" lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n"
      "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\"/>\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n"
      "<meta name=\"color-scheme\" content=\"light "
      "dark\"/>\n<title>{0}</title>\n<style>\n{1}</style>\n</head>\n<body>\n"
      "<header>\n<h1>{0}</h1>\n<p class=\"weak\">{2}</p>\n</header>\n<main>\n{3}{4}</main>\n</body>\n</html>\n",
      escaped(title_), style(), escaped(lead_), body_, is_in_charts_ ? "</div>\n" : "");
}

// Writes the figures of a page as files: SVG, and PNG through the program rsvg-convert.

namespace {

namespace fs = std::filesystem;

constexpr const char* kConverter = "rsvg-convert";

/// Returns false if the program is not installed. It is started without a shell, so file names may contain any
/// character.
bool convert(const std::string& svg, const std::string& png) {
  const std::string svg_path = fs::absolute(svg), png_path = fs::absolute(png);
  const char* arguments[] = {kConverter, "--zoom", "2", "--output", png_path.c_str(), svg_path.c_str(), nullptr};
  pid_t pid = -1;
  const int error = ::posix_spawnp(&pid, kConverter, nullptr, nullptr, const_cast<char**>(arguments), environ);
  if (error == ENOENT) return false;
  require(error == 0, ErrorCode::system_call, "cannot start {}: {}", kConverter, system_text(error));
  int status = 0;
  while (::waitpid(pid, &status, 0) < 0)
    require(errno == EINTR, ErrorCode::system_call, "cannot wait for {}: {}", kConverter, system_text(errno));
  constexpr int kNotFound = 127;  // the exit status if the spawn fails only in the new process
  if (WIFEXITED(status) && WEXITSTATUS(status) == kNotFound) return false;
  require(WIFEXITED(status) && WEXITSTATUS(status) == 0, ErrorCode::system_call, "{} failed: {} was not written",
          kConverter, png);
  return true;
}

}  // namespace

WrittenFigures write_figures(const Page& page, const std::string& directory) {
  std::error_code error;
  fs::create_directories(directory, error);
  require(!error, ErrorCode::system_call, "{}", folder_problem(directory, error));
  WrittenFigures written{.paths = {}, .has_png = true};
  for (const Page::Figure& figure : page.figures()) {
    const std::string svg = fmt::format("{}/{}.svg", directory, figure.name);
    const std::string png = fmt::format("{}/{}.png", directory, figure.name);
    replace_file(svg, standalone_svg(figure.chart));
    written.paths.push_back(svg);
    if (written.has_png) written.has_png = convert(svg, png);
    if (written.has_png) written.paths.push_back(png);
  }
  return written;
}

}  // namespace lockstep::page
