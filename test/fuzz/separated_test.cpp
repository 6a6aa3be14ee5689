// also: Corpus.separated
// Fuzz target: CSV. Input: a file. What is read back from its rows, written again with every value in quotes, must be
// the same.
#include "data/table.h"
#include "test/fuzz/fuzz.h"

#include <nlohmann/json.hpp>

FUZZ_TARGET(separated) {
  using namespace lockstep;
  static const fuzz::ScratchFile file(".csv");
  const auto read = [] {
    std::vector<std::string> rows;
    const auto table = data::open_table(file.path(), data::TableFormat::comma_separated, {.max_row_bytes = 1 << 16});
    for (data::TableRow row; table->next(row);) rows.push_back(*row.front());
    return rows;
  };
  file.write({reinterpret_cast<const char*>(data), size});
  fuzz::no_crash([&] {
    const std::vector<std::string> rows = read();
    std::string again;
    const auto append = [&](std::string_view value) {
      again += again.empty() || again.ends_with('\n') ? "\"" : ",\"";
      for (const char c : value) again += c == '"' ? "\"\"" : std::string(1, c);
      again += '"';
    };
    for (const std::string& row : rows) {
      const auto object = nlohmann::ordered_json::parse(row);
      if (again.empty()) {
        for (const auto& column : object.items()) append(column.key());
        again += '\n';
      }
      for (const auto& column : object.items()) append(column.value().get<std::string>());
      again += '\n';
    }
    if (rows.empty()) return;
    file.write(again);
    if (read() != rows) std::abort();
  });
  return 0;
}
